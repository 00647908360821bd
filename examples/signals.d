/*
 * Which signals are sent, by which program, to which?
 * Run: kinst -s examples/signals.d -c 'sleep 10 & usleep 50000; kill $!'
 */
#pragma D option quiet
fbt::do_send_sig_info:entry { @[arg0, execname, stringof(args[2]->comm)] = count(); }
