/*
 * How many reads are there in total, printed every 100 ms?  (tick)
 * Run: kinst -s examples/every_tenth_of_a_second.d -c 'for n in 1 2 3; do wc -l /proc/meminfo; usleep 100000; done'
 */
#pragma D option quiet
fbt::vfs_read:entry { @reads[execname] = count(); }
tick-100ms, END
{
	printf("reads so far:\n");
	printa("  %-16s %@8d\n", @reads);
}
