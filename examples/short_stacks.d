/*
 * Which code allocates socket buffers?  (two frames of each stack)
 * Run: kinst -s examples/short_stacks.d -c 'ping -c 3 127.0.0.1'
 */
#pragma D option quiet
fbt::__alloc_skb:entry { @[execname, stack(2)] = count(); }
