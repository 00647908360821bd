/*
 * Whom do timer interrupts interrupt?
 * Run: kinst -s examples/interrupted_programs.d -c COMMAND
 */
#pragma D option quiet
fbt::hrtimer_interrupt:entry { @[execname] = count(); }
