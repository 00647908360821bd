/*
 * A switch of which the compiler moves some cases away, for tests/machines/process: its table of
 * jumps leads to two parts of the function, and the cases between are short.
 */
#include <stdio.h>
#include <stdlib.h>

__attribute__((cold, noinline)) static void rare(unsigned n)
{
	printf("rare %u\n", n);
	exit(3);
}

__attribute__((noinline)) unsigned chosen(unsigned n, unsigned x, unsigned y)
{
	switch (n) {
	case 0: return x * y + 9;
	case 2: x *= 3;  /* fall through */
	case 3: x ^= y;  /* fall through */
	case 4: x -= 7;  /* fall through */
	case 5: y ^= x;  /* fall through */
	case 6: x += y; break;
	case 1: return y - x * 5;
	case 7: rare(y); break;
	case 8: y -= 5;  /* fall through */
	case 9: x ^= y; break;
	}
	return x + 2 * y;
}

int main(void)
{
	unsigned sum = 1;
	for (unsigned n = 0; n < 2000; n++)
		if (n % 10 != 7)
			sum = chosen(n % 10, sum, n);
	printf("%u\n", sum);
	return 4;
}
