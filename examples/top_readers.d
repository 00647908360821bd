/*
 * Which five programs read most?
 * Run: kinst -s examples/top_readers.d -c 'wc -l /etc/passwd; md5sum /bin/busybox'
 */
#pragma D option quiet
fbt::vfs_read:return
/(long)arg1 > 0/
{
	@top[execname] = sum(arg1);
}
END
{
	trunc(@top, 5);
	printa("%-20s %@12d\n", @top);
}
