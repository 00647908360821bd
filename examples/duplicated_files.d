/*
 * Which programs duplicate descriptors?
 * Run: kinst -s examples/duplicated_files.d -c 'date >/tmp/x; date | wc -c'
 */
#pragma D option quiet
syscall::dup*:entry { @[execname] = count(); }
