/*
 * How long do soft interrupts take?  (self-> of an interrupt is its own)
 * Run: kinst -s examples/soft_interrupts.d -c COMMAND
 */
#pragma D option quiet
fbt::__do_softirq:entry { self->s = timestamp; }
fbt::__do_softirq:return
/self->s/
{
	@["ns"] = quantize(timestamp - self->s);
	self->s = 0;
}
