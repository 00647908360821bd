/*
 * How long are arriving packets?  (64 bytes and the headers of UDP and IP)
 * Run: kinst -s examples/packet_sizes.d -c 'ping -c 3 -s 64 127.0.0.1'
 */
#pragma D option quiet
fbt::ip_rcv:entry { @[args[0]->len] = count(); }
