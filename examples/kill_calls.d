/*
 * Which programs call kill(2), and with which signal?
 * Run: kinst -s examples/kill_calls.d -c 'sleep 10 & usleep 50000; kill $!'
 */
#pragma D option quiet
fbt::__x64_sys_kill:entry { @[execname, args[0]->si] = count(); }
