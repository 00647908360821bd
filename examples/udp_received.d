/*
 * Who is running when UDP messages arrive?
 * Run: kinst -s examples/udp_received.d -c 'nslookup kinst 127.0.0.1'
 */
#pragma D option quiet
fbt::udp_rcv:entry { @[execname] = count(); }
