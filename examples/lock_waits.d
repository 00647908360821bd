/*
 * How long does mutex_lock() take?
 * Run: kinst -s examples/lock_waits.d -c 'ls -lR /proc/sys/net | wc -l' ls
 */
#pragma D option quiet
fbt::mutex_lock:entry
/execname == $$1/
{
	self->t = timestamp;
	@calls = count();
}
fbt::mutex_lock:return
/self->t/
{
	@["ns"] = quantize(timestamp - self->t);
	self->t = 0;
}
END { printa("mutex_lock calls: %@d\n", @calls); }
