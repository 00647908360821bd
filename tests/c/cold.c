/* One copy of complain() wholly in the cold part of check(), one of both() in two parts. */
extern void far(long) __attribute__((cold));
extern void near(long);
extern long value;

static inline __attribute__((always_inline)) void complain(long x) /* decl complain */
{
	far(x);
	far(x + 1);
}

static inline __attribute__((always_inline)) void both(long x) /* decl both */
{
	near(x);
	if (x > 1000)
		complain(x); /* complain in check.cold */
	near(x * 3);
}

__attribute__((noinline)) long check(long x)
{
	both(x); /* both in check and check.cold */
	return x + value;
}
