/*
 * UDP (Dynamic Tracing Guide, "udp Provider").
 *
 * Sources, of Linux 5.10 to 7.3: net/ipv4/udp.c, net/ipv6/udp.c.  A datagram is sent where its
 * packet leaves for a device: of fragments, the first one counts, which has the header of UDP.
 */

#pragma D depends_on library ipinfo.d
#pragma D depends_on library udpinfo.d

provider udp {
	probe send(struct net *net, struct sock *sk, struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t *sk, ipinfo_t *skb, udpsinfo_t *sk, udpinfo_t *skb) =
	    fbt::ip_finish_output2:entry, fbt::ip6_finish_output2:entry
	    / sk != NULL && skb_protocol[skb] == IPPROTO_UDP &&
	    (skb_ip4[skb]->version == 6 || (ntohs(skb_ip4[skb]->frag_off) & 0x1fff) == 0) /;
	probe receive(struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t * = skb->sk, ipinfo_t *skb, udpsinfo_t * = skb->sk,
	    udpinfo_t *skb) = fbt::udp_rcv:entry, fbt::udpv6_rcv:entry;
};
