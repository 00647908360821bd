/*
 * How many reads are larger than the argument?  (macro $1)
 * Run: kinst -s examples/big_reads.d -c deeds 1000
 */
#pragma D option quiet
BEGIN { n = 0; }
fbt::vfs_read:entry
/execname == "deeds" && arg2 > $1/
{
	n++;
}
END { printf("%d reads of more than %d bytes\n", n, $1); }
