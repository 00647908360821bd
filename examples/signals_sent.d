/*
 * Which program sends which signal to which other program?
 * Run: kinst -s examples/signals_sent.d -c 'sleep 10 & kill $!; wait'
 */
#pragma D option quiet
proc:::signal-send { @[execname, args[1]->pr_fname, args[2]] = count(); }
END { printa("%16s sends %-16s signal %d, %@d times\n", @); }
