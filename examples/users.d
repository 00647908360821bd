/*
 * Which users make system calls?
 * Run: kinst -s examples/users.d -c 'date | wc -c'
 */
#pragma D option quiet
fbt::__x64_sys_*:entry { @[uid] = count(); }
