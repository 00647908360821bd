/*
 * How big are the UDP messages that are sent?
 * Run: kinst -s examples/udp_sizes.d -c 'nslookup kinst 127.0.0.1'
 */
#pragma D option quiet
fbt::udp_sendmsg:entry { @[execname, arg2] = count(); }
