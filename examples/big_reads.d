/*
 * How many reads are larger than a given size?  (macros $$1 and $2)
 * Run: kinst -s examples/big_reads.d -c 'dd if=/dev/zero of=/dev/null bs=64k count=20' dd 1000
 */
#pragma D option quiet
BEGIN { n = 0; }
fbt::vfs_read:entry
/execname == $$1 && arg2 > $2/
{
	n++;
}
END { printf("%d reads of more than %d bytes\n", n, $2); }
