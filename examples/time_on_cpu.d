/*
 * How long does each program keep the CPU before it gives it up or has to?
 * Run: kinst -s examples/time_on_cpu.d -c 'wc -l /etc/passwd; usleep 2000'
 */
#pragma D option quiet
sched:::on-cpu { self->begun = timestamp; }
sched:::off-cpu
/self->begun/
{
	@[execname] = quantize(timestamp - self->begun);
	self->begun = 0;
}
