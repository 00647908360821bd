/*
 * Which programs duplicate descriptors?
 * Run: kinst -s examples/duplicated_files.d -c 'date >/tmp/x; date | wc -c'
 */
#pragma D option quiet
fbt::__x64_sys_dup*:entry { @[execname] = count(); }
