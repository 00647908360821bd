/*
 * Which processes make system calls?
 * Run: kinst -s examples/system_calls_by_process.d -c 'date | wc -c'
 */
#pragma D option quiet
syscall:::entry { @[execname] = count(); }
