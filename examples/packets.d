/*
 * Over which devices do IP packets arrive?
 * Run: kinst -s examples/packets.d -c COMMAND
 */
#pragma D option quiet
fbt::ip_rcv:entry { @[stringof(args[1]->name)] = count(); }
