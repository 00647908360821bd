/*
 * How long do soft interrupts take?  (self-> of an interrupt is its own)
 * Run: kinst -s examples/soft_interrupts.d -c 'md5sum /bin/busybox; ping -c 2 127.0.0.1'
 */
#pragma D option quiet
fbt::__do_softirq:entry { self->s = timestamp; }
fbt::__do_softirq:return
/self->s/
{
	@["ns"] = quantize(timestamp - self->s);
	self->s = 0;
}
