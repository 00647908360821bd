/*
 * How many reads are below a page?  (-C: the C preprocessor)
 * Run: kinst -C -s examples/preprocessed.d -c deeds
 */
#pragma D option quiet
#define PAGE 4096
#define MINE(name) (execname == name)
fbt::vfs_read:entry / MINE("deeds") && arg2 < PAGE / { small++; }
fbt::vfs_read:entry / MINE("deeds") && arg2 >= PAGE / { large++; }
END { printf("small %d, large %d\n", small, large); }
