/*
 * Which paths are asked about with stat(2)?
 * Run: kinst -s examples/stats.d -c 'ls -l /etc/passwd /etc/group'
 */
#pragma D option quiet
fbt::__x64_sys_newfstatat:entry { @[execname, copyinstr(args[0]->si)] = count(); }
