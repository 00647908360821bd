/*
 * How big are reads: minimum, maximum, mean, standard deviation?
 * Run: kinst -s examples/statistics.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
fbt::vfs_read:return
/execname == $$1 && (long)arg1 > 0/
{
	@least = min(arg1);
	@most = max(arg1);
	@mean = avg(arg1);
	@dev = stddev(arg1);
}
END
{
	printa("reads: least %@d, most %@d, mean %@d, deviation %@d\n", @least, @most, @mean, @dev);
}
