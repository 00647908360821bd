/*
 * How many reads are below a page?  (-C: the C preprocessor)
 * Run: kinst -C -s examples/preprocessed.d -c 'for size in 64 4k 64k; do dd if=/dev/zero of=/dev/null bs=$size count=9; done' dd
 */
#pragma D option quiet
#define PAGE 4096
#define MINE(name) (execname == name)
fbt::vfs_read:entry / MINE($$1) && arg2 < PAGE / { small++; }
fbt::vfs_read:entry / MINE($$1) && arg2 >= PAGE / { large++; }
END { printf("small %d, large %d\n", small, large); }
