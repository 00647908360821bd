/*
 * Which programs do timer interrupts interrupt?
 * Run: kinst -s examples/interrupted_programs.d -c 'md5sum /bin/busybox'
 */
#pragma D option quiet
fbt::hrtimer_interrupt:entry { @[execname] = count(); }
