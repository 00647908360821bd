/*
 * How long are arriving packets?  (64 bytes and the headers of UDP and IP)
 * Run: kinst -s examples/packet_sizes.d -c COMMAND
 */
#pragma D option quiet
fbt::ip_rcv:entry { @[args[0]->len] = count(); }
