/*
 * How long do threads sleep in schedule()?  (us)
 * Run: kinst -s examples/off_cpu.d -c 'for n in 1 2 3; do usleep 1000; done'
 */
#pragma D option quiet
fbt::schedule:entry { self->off = timestamp; }
fbt::schedule:return
/self->off/
{
	@[execname] = quantize((timestamp - self->off) / 1000);
	self->off = 0;
}
END { printa("  %s\n%@d\n", @); }
