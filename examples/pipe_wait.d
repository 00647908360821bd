/*
 * How long do readers of a pipe wait?
 * Run: kinst -s examples/pipe_wait.d -c '{ usleep 5000; echo ready; } | cat' cat
 */
#pragma D option quiet
fbt::pipe_read:entry
/execname == $$1/
{
	self->ts = timestamp;
}
fbt::pipe_read:return
/self->ts/
{
	@[probefunc] = quantize(timestamp - self->ts);
	self->ts = 0;
}
END { printa("  %s\n%@d\n", @); }
