/*
 * Packets of IPv4 and IPv6 (Dynamic Tracing Guide, "ip Provider").
 *
 * Sources, of Linux 5.10 to 7.3: net/ipv4/ip_output.c, net/ipv6/ip6_output.c, net/ipv4/ip_input.c,
 * net/ipv6/ip6_input.c.  A packet is sent where it leaves for a device, as a fragment if it is too
 * long; it is received where it is known to be for this machine, before fragments are joined.
 */

#pragma D depends_on library ipinfo.d

provider ip {
	probe send(struct net *net, struct sock *sk, struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t *sk, ipinfo_t *skb, ifinfo_t *skb, ipv4info_t *skb,
	    ipv6info_t *skb) =
	    fbt::ip_finish_output2:entry, fbt::ip6_finish_output2:entry;
	probe receive(struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t * = skb->sk, ipinfo_t *skb, ifinfo_t *skb, ipv4info_t *skb,
	    ipv6info_t *skb) =
	    fbt::ip_local_deliver:entry, fbt::ip6_input:entry;
};
