/*
 * Which users make system calls?
 * Run: kinst -s examples/users.d -c 'date | wc -c'
 */
#pragma D option quiet
syscall:::entry { @[uid] = count(); }
