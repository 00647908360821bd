/*
 * Who gives up the CPU, how often?
 * Run: kinst -s examples/context_switches.d -c COMMAND
 */
#pragma D option quiet
fbt::schedule:entry { @[execname] = count(); }
