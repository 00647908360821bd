/*
 * A program for tests/machines/process that works in the C library: it sorts, converts, copies and
 * compares, allocates, prints, and jumps with longjmp(3).  Its exit status is 7.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf back;
static int turns;

static int by_value(const void *one, const void *other)
{
	const int *a = one, *b = other;
	return *a < *b ? -1 : *a > *b;
}

int main(int count, char **words)
{
	int rounds = atoi(words[1]), numbers[50];
	unsigned seed = 1;
	long total = 0;
	char *texts[20];
	for (int n = 0; n < rounds; n++) {
		char text[100];
		for (int k = 0; k < 50; k++)
			numbers[k] = rand_r(&seed) % 1000;
		qsort(numbers, 50, sizeof *numbers, by_value);
		for (int k = 0; k < 20; k++) {
			texts[k] = malloc(30 * (k + n + 1));
			snprintf(text, sizeof text, "%d %s %5.2f", numbers[k], words[0], k / 3.0);
			memset(texts[k], k, 30 * (k + n + 1));
			strncpy(texts[k], text, 29 * (k + 1));
			total += strtol(texts[k], 0, 10) + (strchr(texts[k], '.') != 0);
		}
		for (int k = 0; k < 20; k++) {
			total += memcmp(texts[k], texts[19 - k], 20) > 0;
			free(texts[k]);
		}
		if (setjmp(back) == 0)
			longjmp(back, 1);
		turns++;
	}
	printf("%ld %d %d\n", total, turns, count);
	return 7;
}
