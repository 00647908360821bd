/*
 * Which program runs after which other one on a CPU?
 * Run: kinst -s examples/next_programs.d -c 'date | wc -c'
 */
#pragma D option quiet
sdt:sched::sched_switch { @[stringof(args[1]->comm), stringof(args[2]->comm)] = count(); }
END { printa("%16s -> %-16s %@d\n", @); }
