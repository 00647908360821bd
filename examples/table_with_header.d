/*
 * How many reads and bytes has each program, in a table with a header?
 * Run: kinst -s examples/table_with_header.d -c 'wc -l /etc/passwd; md5sum /bin/busybox'
 */
#pragma D option quiet
BEGIN { printf("%-16s %8s %12s\n", "PROGRAM", "READS", "BYTES"); }
fbt::vfs_read:return
/(long)arg1 > 0/
{
	@reads[execname] = count();
	@bytes[execname] = sum(arg1);
}
END { printa("%-16s %@8d %@12d\n", @reads, @bytes); }
