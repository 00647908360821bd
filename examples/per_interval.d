/*
 * How many reads in each interval of 50 ms?
 * Run: kinst -s examples/per_interval.d -c 'for n in 1 2 3; do wc -l /proc/meminfo; usleep 50000; done'
 */
#pragma D option quiet
BEGIN { start = timestamp; }
fbt::vfs_read:entry { @n = count(); }
tick-50ms
{
	printf("%5d ms ", (timestamp - start) / 1000000);
	printa("%@8d reads\n", @n);
	clear(@n);
}
