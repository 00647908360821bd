/*
 * Who receives UDP messages?
 * Run: kinst -s examples/udp_received.d -c COMMAND
 */
#pragma D option quiet
fbt::udp_recvmsg:entry { @[execname] = count(); }
