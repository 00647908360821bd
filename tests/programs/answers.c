/*
 * A program for tests/machines/process that runs until its input ends.  For each line N it does N
 * rounds and prints their result; it begins with its process id.  Meanwhile a thread computes, another one sleeps often, and a
 * timer's signal interrupts all of them.  At the end it computes in main() what the thread has
 * computed: if both agree, its exit status is 5.
 *
 * With -DOWN_CALLS, its threads sleep in code of this file, as those of a static program sleep in
 * code of the program: it makes the calls read(2) and nanosleep(2) itself.
 *
 * With -DFILLS_LOW_ADDRESSES, it leaves no addresses free below 2 GB.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef OWN_CALLS
static long own_call(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

__attribute__((noinline)) static ssize_t own_read(int file, void *to, size_t size)
{
	return own_call(SYS_read, file, (long)to, size);
}

__attribute__((noinline)) static int own_nanosleep(const struct timespec *time, struct timespec *left)
{
	return own_call(SYS_nanosleep, (long)time, (long)left, 0);
}
#define read own_read
#define nanosleep own_nanosleep
#endif

static volatile int over;
static volatile sig_atomic_t ticks;
static unsigned long steps, naps;
/* Nothing reads it: a test writes addresses there, as stacks have them of calls that have returned. */
unsigned long stale_words[32];

__attribute__((noinline)) unsigned long one_round(unsigned long value)
{
	return value * 6364136223846793005ul + (value >> 33 ^ 1442695040888963407ul);
}

__attribute__((noinline)) unsigned long spin_round(unsigned long value)
{
	value ^= value << 13;
	if (value & 1)
		value += value >> 7;
	else
		value = one_round(value);
	return value ^ value << 17;
}

static void *spin(void *at)
{
	unsigned long value = 1;
	while (!over) {
		for (int n = 0; n < 20000; n++)
			value = spin_round(value);
		steps += 20000;
		usleep(500);
	}
	*(unsigned long *)at = value;
	return 0;
}

static void *nap(void *unused)
{
	struct timespec shortly = {0, 1000000};
	while (!over) {
		nanosleep(&shortly, 0);
		naps++;
	}
	return unused;
}

/* Nothing calls it. */
__attribute__((noinline, used)) static int never(int value) { return value * 3; }

static void tick(int number) { ticks += number > 0; }

__attribute__((noinline)) unsigned answer_round(unsigned n) { return n * 2654435761u ^ n >> 7; }

/* Read a line with read(2) alone. */
static int line(char *to, int size)
{
	int at = 0;
	while (at < size - 1) {
		if (read(0, to + at, 1) != 1)
			return 0;
		if (to[at] == '\n')
			break;
		at++;
	}
	to[at] = 0;
	return 1;
}

int main(void)
{
	struct itimerval often = {{0, 1000}, {0, 1000}};
	struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
	pthread_t spinner, sleeper;
	unsigned long result, value = 1;
	char text[32];
#ifdef FILLS_LOW_ADDRESSES
	void *low = (void *)(1ul << 16);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	if (mmap(low, (1ul << 31) - (1ul << 16), PROT_NONE, flags, -1, 0) != low)
		return 7;
#endif
	setvbuf(stdout, 0, _IOLBF, 0);
	sigaction(SIGALRM, &action, 0);
	setitimer(ITIMER_REAL, &often, 0);
	pthread_create(&spinner, 0, spin, &result);
	pthread_create(&sleeper, 0, nap, 0);
	printf("%d\n", getpid());
	while (line(text, sizeof text)) {
		unsigned found = 1;
		for (int n = atoi(text); n > 0; n--)
			found = answer_round(found);
		printf("%u\n", found);
	}
	over = 1;
	pthread_join(spinner, 0);
	pthread_join(sleeper, 0);
	for (unsigned long n = 0; n < steps; n++)
		value = spin_round(value);
	return value == result && ticks && naps ? 5 : 6;
}
