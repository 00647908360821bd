/*
 * Who duplicates descriptors?
 * Run: kinst -s examples/duplicated_files.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_dup*:entry { @[execname] = count(); }
