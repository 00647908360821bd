/*
 * At which time of day does something happen?
 * Run: kinst -s examples/time_of_day.d -c 'for n in 1 2 3; do date | wc -c; done' sh
 */
#pragma D option quiet
fbt::kernel_clone:entry
/execname == $$1/
{
	printf("%Y %s starts a child\n", walltimestamp, execname);
}
