/* Parameters that are dead when their function goes on: only callers know what they were. */
#include <stdio.h>

static volatile long sum;
__attribute__((noipa)) static void sink(long n) { sum += n; __asm__ volatile("" ::: "memory"); }

/* A function whose parameters are used once, before the first call. */
#define LOST(name)                                                                              \
    __attribute__((noipa)) static long name(long number, const char *text, int small)        \
    {                                                                                           \
        sink(number + *text + small);                                                           \
        sink(1);                                                                                \
        sink(sum & 3);                                                                          \
        return sum;                                                                             \
    }

LOST(by_constant)
LOST(by_register)
LOST(by_frame)
LOST(by_tail)
LOST(by_pointer)

/* After itself by another's tail call. */
__attribute__((noipa)) static long other(long number, long left);
__attribute__((noipa)) static long by_itself(long number, long left)
{
    sink(number);
    sink(2);
    if (left > 0) {
        long now = left;
        __asm__ volatile("" : "+r"(now));
        return other(sum, now - 1);
    }
    return sum;
}
__attribute__((noipa)) static long other(long number, long left)
{
    sink(3);
    return by_itself(number + 1, left);
}

/* Its own registers are saved by what it calls, and not. */
__attribute__((noipa)) static void keeps(long first, const char *text, long count)
{
    for (long i = 0; i < count; i++) {
        sum += by_register(first + i, text + i, 5);
        sink(first);
    }
}

__attribute__((noipa)) static void has_frame(void)
{
    char room[40];
    for (unsigned i = 0; i < sizeof room; i++)
        room[i] = (char)(i + 1);
    sum += by_frame(77, room + 8, room[3]);
    sink(room[9]);
}

__attribute__((noipa)) static long ends(long number) { return by_tail(number + 9, "tail", 1); }

long (*volatile pointer)(long, const char *, int) = by_pointer;

__attribute__((noinline)) void finished(void) { __asm__ volatile(""); }

int main(int argc, char **argv)
{
    (void)argv;
    sum += by_constant(11, "constant", -3);
    keeps(argc + 20, "register", 3);
    has_frame();
    sum += ends(argc + 1) + 1;
    sum += pointer(argc + 40, "pointer", 4) + 1;
    sum += by_itself(argc + 60, 2) + 1;
    printf("%ld\n", sum);
    finished();
    return 0;
}
