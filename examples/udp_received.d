/*
 * Who receives UDP messages?
 * Run: kinst -s examples/udp_received.d -c 'nslookup kinst 127.0.0.1'
 */
#pragma D option quiet
fbt::udp_recvmsg:entry { @[execname] = count(); }
