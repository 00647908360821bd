/*
 * Over which devices do IP packets arrive?
 * Run: kinst -s examples/packets.d -c 'ping -c 3 127.0.0.1'
 */
#pragma D option quiet
fbt::ip_rcv:entry { @[stringof(args[1]->name)] = count(); }
