/*
 * How close together are calls of getppid(2)?
 * Run: kinst -s examples/getppid_rate.d -c COMMAND
 */
#pragma D option quiet
uint64_t last;
fbt::__x64_sys_getppid:entry
/last && execname == "deeds"/
{
	@apart = avg(timestamp - last);
}
fbt::__x64_sys_getppid:entry
/execname == "deeds"/
{
	last = timestamp;
	@n = count();
}
END { printa("%@d calls, %@d ns apart on average\n", @n, @apart); }
