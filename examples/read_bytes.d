/*
 * How many bytes does each process read?
 * Run: kinst -s examples/read_bytes.d -c 'wc -l /etc/passwd /proc/meminfo'
 */
#pragma D option quiet
fbt::vfs_read:return
/(long)arg1 > 0/
{
	@[execname] = sum(arg1);
}
END { printa("%-16s %@d bytes\n", @); }
