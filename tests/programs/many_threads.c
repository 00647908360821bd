/*
 * Threads and processes for tests/machines/process: each does a known number of rounds.  Threads
 * run at once, then hundreds one after another, some fork; a timer's signal interrupts all of them.
 *
 *     many_threads THREADS ROUNDS
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int rounds;
static volatile sig_atomic_t ticks;

__attribute__((noinline)) unsigned one_round(unsigned n) { return n * 2654435761u ^ n >> 7; }

__attribute__((noinline)) static unsigned work(int count)
{
	unsigned value = 1;
	for (int n = 0; n < count; n++)
		value = one_round(value);
	return value;
}

static void *thread(void *unused)
{
	(void)unused;
	return (void *)(unsigned long)work(rounds);
}

static volatile unsigned result;

__attribute__((noinline)) void in_child(void) { result = work(rounds); }

static void tick(int number) { ticks += number > 0; }

int main(int count, char **words)
{
	int threads = count > 1 ? atoi(words[1]) : 4;
	struct itimerval often = {{0, 1000}, {0, 1000}};
	pthread_t all[64];
	rounds = count > 2 ? atoi(words[2]) : 1000;
	signal(SIGPROF, tick);
	setitimer(ITIMER_PROF, &often, 0);
	for (int k = 0; k < threads; k++)
		pthread_create(all + k, 0, thread, 0);
	for (int k = 0; k < threads; k++)
		pthread_join(all[k], 0);
	for (int k = 0; k < 200; k++) {
		pthread_create(all, 0, thread, 0);
		pthread_join(*all, 0);
	}
	for (int k = 0; k < 4; k++)
		if (!fork()) {
			in_child();
			_exit(0);
		}
	while (wait(0) > 0)
		;
	if (system("exit 3") != 3 << 8)
		return 1;
	printf("%d threads\n", threads);
	return 6;
}
