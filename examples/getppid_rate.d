/*
 * How close together are calls of getppid(2)?
 * Run: kinst -s examples/getppid_rate.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_getppid:entry
/last/
{
	@apart = avg(timestamp - last);
}
fbt::__x64_sys_getppid:entry
{
	last = timestamp;
	@n = count();
}
END { printa("%@d calls, %@d ns apart on average\n", @n, @apart); }
