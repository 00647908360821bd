/*
 * When, by the clock on the wall?
 * Run: kinst -s examples/time_of_day.d -c COMMAND
 */
#pragma D option quiet
fbt::kernel_clone:entry
/execname == "deeds"/
{
	printf("%Y %s starts a child\n", walltimestamp, execname);
}
