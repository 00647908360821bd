/*
 * To which lengths are files truncated?
 * Run: kinst -s examples/truncations.d -c 'truncate -s 4096 /tmp/x'
 */
#pragma D option quiet
fbt::do_truncate:entry { @[execname, arg2] = count(); }
