/*
 * Code of many shapes for tests/machines/process: loops, recursion, a switch, calls by pointer,
 * leaf functions that keep data below the stack pointer, string instructions, setjmp, a signal
 * handler, an exit handler.  Prints a number that depends on all of them.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned sum;
static jmp_buf back;
static volatile sig_atomic_t handled;

static unsigned fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__attribute__((noinline)) static unsigned chosen(unsigned n)
{
	switch (n % 9) {
	case 0: return n + 1;
	case 1: return n * 3;
	case 2: sum += n; return 7;
	case 3: return n ^ 0x55;
	case 4: return n << 2;
	case 5: return n >> 1;
	case 6: sum ^= n;  /* fall through */
	case 7: return ~n;
	}
	return 0;
}

/* Its array lies in the red zone. */
__attribute__((noinline)) static unsigned leaf(unsigned n)
{
	volatile unsigned kept[20];
	unsigned total = 0;
	for (unsigned k = 0; k < 20; k++)
		kept[k] = n + k;
	for (unsigned k = 0; k < 20; k++)
		total += kept[k] * (kept[(k + 7) % 20] > n ? 3 : 5);
	return total;
}

static unsigned plus(unsigned a, unsigned b) { return a + b; }
static unsigned minus(unsigned a, unsigned b) { return a - b; }
static unsigned times(unsigned a, unsigned b) { return a * b; }
static unsigned (*const operations[])(unsigned, unsigned) = {plus, minus, times};

__attribute__((noinline)) static void thrown(int n)
{
	if (n > 2)
		longjmp(back, n);
	sum += n;
}

static int compared(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static void handler(int number)
{
	handled += number;
	sum += leaf(number);
}

static void at_end(void) { printf("end %u\n", sum); }

int main(int count, char **words)
{
	char text[300], copy[300];
	int many[64];
	atexit(at_end);
	signal(SIGUSR1, handler);
	for (unsigned n = 0; n < 60; n++) {
		sum += chosen(n) + leaf(n);
		sum = operations[n % 3](sum, n | 1);
		if (n % 10 == 0)
			raise(SIGUSR1);
	}
	for (int n = 0; n < 6; n++)
		if (!setjmp(back))
			thrown(n);
		else
			sum += 1000;
	memset(text, 'a' + count, sizeof text);
	memset(copy, 'z', sizeof copy);
	for (unsigned n = 0; n < 40; n++) {
		void *to = copy;
		const void *from = text;
		size_t bytes = n * 7;
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
		sum += (unsigned char)copy[n];
	}
	for (int n = 0; n < 64; n++)
		many[n] = (n * 37) % 64;
	qsort(many, 64, sizeof *many, compared);
	for (int n = 0; n < 64; n++)
		sum += many[n] == n;
	sum += fibonacci(12);
	printf("%u %d %s\n", sum, (int)handled, words[1] ? words[1] : "");
	return sum % 100;
}
