/*
 * How much time is between two calls of getppid(2)?
 * Run: kinst -s examples/getppid_rate.d -c 'for n in 1 2 3 4; do sh -c true; done' sh
 */
#pragma D option quiet
uint64_t last;
syscall::getppid:entry
/last && execname == $$1/
{
	@apart = avg(timestamp - last);
}
syscall::getppid:entry
/execname == $$1/
{
	last = timestamp;
	@n = count();
}
END { printa("%@d calls, %@d ns apart on average\n", @n, @apart); }
