/*
 * A program for tests/machines/process with many threads that begin and end, forks in threads, and
 * a child process that stops and continues it (SIGSTOP, SIGCONT).
 *
 *     crowd THREADS ROUNDS
 *
 * Every 20th thread forks a child process that does as many rounds as a thread.  The program prints
 * the sum of all results and exits with status 6.  Its
 * first line says that it runs.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOGETHER = 10, FORKS = 20, STOPS = 15 };
static int rounds;
static unsigned long total;

__attribute__((noinline)) unsigned crowd_round(unsigned n) { return n * 2654435761u ^ n >> 7; }

__attribute__((noinline)) static unsigned work(unsigned value)
{
	for (int n = 0; n < rounds; n++)
		value = crowd_round(value);
	return value;
}

static void *thread(void *number)
{
	unsigned long own = (unsigned long)number, result = work((unsigned)own);
	if (own % FORKS == 0) {
		int status;
		pid_t child = fork();
		if (!child)
			_exit((int)(work((unsigned)own + 1) & 63));
		waitpid(child, &status, 0);
		result += (unsigned long)status;
	}
	__atomic_add_fetch(&total, result, __ATOMIC_RELAXED);
	return 0;
}

int main(int count, char **words)
{
	int threads = count > 1 ? atoi(words[1]) : 100;
	pthread_t all[TOGETHER];
	pid_t stopper, program = getpid();
	rounds = count > 2 ? atoi(words[2]) : 1000;
	setvbuf(stdout, 0, _IOLBF, 0);
	write(1, "begin\n", 6);
	stopper = fork();
	if (!stopper) {
		for (int n = 0; n < STOPS; n++) {
			kill(program, SIGSTOP);
			usleep(500);
			kill(program, SIGCONT);
			usleep(3000);
		}
		_exit(0);
	}
	for (int n = 0; n < threads; n += TOGETHER) {
		for (int k = 0; k < TOGETHER; k++)
			if (pthread_create(all + k, 0, thread, (void *)(unsigned long)(n + k)))
				return 1;
		for (int k = 0; k < TOGETHER; k++)
			pthread_join(all[k], 0);
	}
	waitpid(stopper, 0, 0);
	printf("%lu\n", total);
	return 6;
}
