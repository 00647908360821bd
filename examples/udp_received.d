/*
 * To which ports do UDP messages arrive?  (the header of a packet)
 * Run: kinst -s examples/udp_received.d -c 'nslookup kinst 127.0.0.1'
 */
#pragma D option quiet
fbt::udp_rcv:entry
{
	this->header = (struct udphdr *)(args[0]->head + args[0]->transport_header);
	@[ntohs(this->header->dest)] = count();
}
