/*
 * How many timer interrupts does each CPU take?
 * Run: kinst -s examples/timer_interrupts.d -c 'md5sum /bin/busybox; sleep 0.2'
 */
#pragma D option quiet
fbt::hrtimer_interrupt:entry { @[cpu] = count(); }
