/* wild N SEED: call read(2) N times with an address made at random as its buffer, on a descriptor
 * that is not open: the kernel fails it without touching the buffer.  Addresses are multiples of
 * 8 of all kinds: anything, the direct map of memory and beyond, the kernel's image and beyond,
 * vmalloc, page structures, user memory that is there and that is not, not canonical ones.
 * Prints "wild N". */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t state;

static uint64_t next(void) /* splitmix64 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t memory, text, vmalloc; /* where the kernel has them */

/* From the program headers of /proc/kcore: memory has its physical address there, vmalloc none. */
static void find_areas(void)
{
    Elf64_Ehdr head;
    FILE *file = fopen("/proc/kcore", "r");
    if (!file || fread(&head, sizeof head, 1, file) != 1)
        exit(1);
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        if (fseek(file, (long)(head.e_phoff + (unsigned)i * sizeof part), SEEK_SET) != 0 ||
            fread(&part, sizeof part, 1, file) != 1)
            exit(1);
        if (part.p_type != PT_LOAD)
            continue;
        if (part.p_memsz >= 1ull << 40)
            vmalloc = part.p_vaddr;
        else if (part.p_vaddr >= 0xffffffff80000000 && !text)
            text = part.p_vaddr;
        else if (part.p_paddr == 0x100000)
            memory = part.p_vaddr - part.p_paddr;
    }
    fclose(file);
    if (!memory || !text || !vmalloc) {
        fprintf(stderr, "wild: kcore: %lx %lx %lx\n", memory, text, vmalloc);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static char own[1 << 16];
    long n = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    state = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    find_areas();
    for (unsigned at = 0; at < sizeof own; at += 8)
        own[at] = 'x';
    for (long i = 0; i < n; i++) {
        uint64_t r = next(), address;
        switch (i % 8) {
        case 0: address = r; break;
        case 1:
        case 2: address = memory + r % (1024ull << 20); break;
        case 3: address = text + r % (48ull << 20); break;
        case 4: address = vmalloc + r % (8ull << 20); break;
        case 5: address = 0xffffea0000000000 + r % (32ull << 20); break;
        case 6: address = i & 8 ? (uintptr_t)own + r % sizeof own : r & 0x7fffffffffff; break;
        default: address = (r & 0x7fffffffffffffff) | 0x1000000000000000; break;
        }
        syscall(SYS_read, -1, (void *)(address & ~7ull), 8);
    }
    printf("wild %ld\n", n);
    return 0;
}
