/*
 * Which capabilities are asked for?  (numbers of capability.h)
 * Run: kinst -s examples/capabilities.d -c COMMAND
 */
#pragma D option quiet
fbt::cap_capable:entry { @[execname, arg2] = count(); }
