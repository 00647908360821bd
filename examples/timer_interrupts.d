/*
 * How many timer interrupts does each CPU take?
 * Run: kinst -s examples/timer_interrupts.d -c COMMAND
 */
#pragma D option quiet
fbt::hrtimer_interrupt:entry { @[cpu] = count(); }
