/* Inline functions whose copies can be told by reading this file.
 *
 * "decl F" marks the line where F is declared, "F in A, B" the line of a call of F that is
 * inlined into the functions A and B, once each ("+" after a name: at least once, because a
 * compiler may unroll its recursion).  MARK leaves, in section .marks, the address of an
 * instruction that each copy has, with the function's number.
 */
#define MARK(id) __asm__ volatile("0: nop\n\t.pushsection .marks,\"a\"\n\t" \
				  ".quad 0b, " #id "\n\t.popsection")
#define INLINED static inline __attribute__((always_inline))
#ifdef __clang__
#define KEPT __attribute__((noinline))
#else
#define KEPT __attribute__((noipa))
#endif

extern long data[64];
extern void sink(long);

INLINED long early(long x) /* decl early */
{
	MARK(1);
	if (x < 0)
		return -1;
	sink(x);
	return x * 3;
}

INLINED long loop(long n) /* decl loop */
{
	long sum = 0;

	MARK(2);
	for (long i = 0; i < n; i++)
		sum += data[i & 63] ^ n;
	return sum;
}

INLINED long outer(long x) /* decl outer */
{
	MARK(3);
	return early(x - 7) + 1; /* early in nested, twice, twice */
}

extern inline __attribute__((always_inline, gnu_inline)) long
visible(long x) /* decl visible */
{
	MARK(4);
	sink(x ^ 5);
	return x;
}

INLINED __attribute__((cold)) long rare(long x) /* decl rare */
{
	MARK(5);
	sink(-x);
	return x + 9;
}

KEPT long simple(long x)
{
	return early(x); /* early in simple */
}

KEPT long looping(long x)
{
	long sum = 0;

	for (long i = 0; i < x; i++)
		sum += loop(data[i & 63]); /* loop in looping+ */
	return sum;
}

KEPT long nested(long x)
{
	return outer(x) + loop(x); /* outer in nested | loop in nested+ */
}

KEPT long twice(long x)
{
	long a = outer(x + 1); /* outer in twice */
	sink(a);
	return a + outer(x + 2); /* outer in twice */
}

KEPT long recursive(long x)
{
	if (x < 2)
		return visible(x); /* visible in recursive+ */
	return early(x) + recursive(x - 1); /* early in recursive+ */
}

KEPT long unlikely(long x)
{
	if (__builtin_expect(x == 12345, 0))
		return rare(x); /* rare in unlikely */
	return visible(x + 1); /* visible in unlikely */
}

long data[64];

KEPT void sink(long x)
{
	data[x & 63] += x;
}

KEPT long all(long x)
{
	return simple(x) + looping(x) + nested(x) + twice(x) + recursive(x) + unlikely(x);
}

void _start(void)
{
	data[0] = all(data[1]);
	for (;;)
		;
}
