/*
 * Which program wakes which other program?
 * Run: kinst -s examples/wakeups.d -c 'date | wc -c'
 */
#pragma D option quiet
fbt::try_to_wake_up:entry { @[execname, stringof(args[0]->comm)] = count(); }
END { printa("%16s wakes %-16s %@d\n", @); }
