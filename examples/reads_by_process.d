/*
 * Which processes call read(2), how often?
 * Run: kinst -s examples/reads_by_process.d -c COMMAND
 */
#pragma D option quiet
fbt::ksys_read:entry { @[execname] = count(); }
