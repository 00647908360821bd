/* frames N: call lseek(2) N times, each from one and the same depth of functions, and print what
 * the program itself knows of its stack there, in hexadecimal: "frames" and the return addresses
 * from lseek's caller on, innermost first; "sp" the stack pointer and "fp" the frame pointer of
 * the caller.  The system call is made by an instruction here, so that no function of the C
 * library, which has no frame pointer, is the innermost.  The file is descriptor 0, the offset 77
 * and 78 in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#pragma GCC optimize("no-omit-frame-pointer", "no-optimize-sibling-calls")

static unsigned long known[16];
static unsigned long stack_pointer, frame_pointer;
static int depth;

#if defined(__riscv)
enum { NEXT = -2, BACK = -1 };
#else
enum { NEXT = 0, BACK = 1 };
#endif

#if defined(__x86_64__)
#define LSEEK(offset) \
    __asm__ volatile("syscall" : "=a"(result) \
                     : "a"(SYS_lseek), "D"(0L), "S"(offset), "d"(0L) \
                     : "rcx", "r11", "memory")
#define STACK_POINTER "rsp"
#elif defined(__aarch64__)
#define LSEEK(offset) \
    register long x0 __asm__("x0") = 0; \
    register long x1 __asm__("x1") = offset; \
    register long x2 __asm__("x2") = 0; \
    register long x8 __asm__("x8") = SYS_lseek; \
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory"); \
    result = x0
#define STACK_POINTER "sp"
#else
#define LSEEK(offset) \
    register long a0 __asm__("a0") = 0; \
    register long a1 __asm__("a1") = offset; \
    register long a2 __asm__("a2") = 0; \
    register long a7 __asm__("a7") = SYS_lseek; \
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory"); \
    result = a0
#define STACK_POINTER "sp"
#endif

__attribute__((noinline)) long innermost(long offset)
{
    register unsigned long sp __asm__(STACK_POINTER);
    unsigned long *frame = __builtin_frame_address(0);
    long result;
    __asm__ volatile("" : "=r"(sp));
    stack_pointer = sp;
    frame_pointer = (unsigned long)frame;
    for (depth = 0; depth < 3; depth++) { /* back to middle, outer and main */
        known[depth] = frame[BACK];
        frame = (unsigned long *)frame[NEXT];
    }
    LSEEK(offset);
    return result;
}

__attribute__((noinline)) long middle(long offset)
{
    return innermost(offset + 7) + 1;
}

__attribute__((noinline)) long outer(long offset)
{
    return middle(offset + 70) + 1;
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 1, sum = 0;
    for (long i = 0; i < n; i++)
        sum += outer(i & 1);
    printf("frames");
    for (int i = 0; i < depth; i++)
        printf(" %lx", known[i]);
    printf("\nsp %lx fp %lx sum %d\n", stack_pointer, frame_pointer, sum != 0);
    return 0;
}
