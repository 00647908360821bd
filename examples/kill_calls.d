/*
 * Which programs call kill(2), and with which signal?
 * Run: kinst -s examples/kill_calls.d -c 'sleep 10 & usleep 50000; kill $!'
 */
#pragma D option quiet
syscall::kill:entry { @[execname, arg1] = count(); }
