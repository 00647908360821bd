/*
 * How many KiB does each process read?  (normalize)
 * Run: kinst -s examples/normalized.d -c 'md5sum /bin/busybox; wc -l /proc/meminfo'
 */
#pragma D option quiet
fbt::vfs_read:return
/(long)arg1 > 0/
{
	@[execname] = sum(arg1);
}
END
{
	normalize(@, 1024);
	printa("%s %@d KiB\n", @);
}
