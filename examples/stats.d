/*
 * Which paths are asked about with stat(2)?
 * Run: kinst -s examples/stats.d -c 'ls -l /etc/passwd /etc/group'
 */
#pragma D option quiet
syscall::newfstatat:entry { @[execname, copyinstr(arg1)] = count(); }
