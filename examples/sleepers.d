/*
 * How much longer do sleeps take than was asked for?
 * Run: kinst -s examples/sleepers.d -c 'sleep 0.01' sleep
 */
#pragma D option quiet
fbt::hrtimer_nanosleep:entry
/pid == $target && execname == $$1/
{
	self->start = timestamp;
	self->asked = arg0;
}
fbt::hrtimer_nanosleep:return
/self->start/
{
	printf("%s %d us (asked for %d)\n", execname, (timestamp - self->start) / 1000, self->asked / 1000);
	self->start = 0;
	self->asked = 0;
}
