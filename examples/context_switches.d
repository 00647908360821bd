/*
 * Which programs give up the CPU, and how often?
 * Run: kinst -s examples/context_switches.d -c 'for n in 1 2 3; do usleep 1000; done'
 */
#pragma D option quiet
fbt::schedule:entry { @[execname] = count(); }
