/*
 * TCP (Dynamic Tracing Guide, "tcp Provider").
 *
 * Sources, of Linux 5.10 to 7.3: net/ipv4/tcp_ipv4.c, net/ipv6/tcp_ipv6.c, net/ipv4/af_inet.c,
 * include/trace/events/sock.h.  A segment is sent where its packet leaves for a device; before
 * that, it has no header.  A received segment has a socket if the kernel has found it early.
 */

#pragma D depends_on library ipinfo.d
#pragma D depends_on library tcpinfo.d

provider tcp {
	probe send(struct net *net, struct sock *sk, struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t *sk, ipinfo_t *skb, tcpsinfo_t *sk, tcpinfo_t *skb) =
	    fbt::ip_finish_output2:entry, fbt::ip6_finish_output2:entry
	    / sk != NULL && skb_protocol[skb] == IPPROTO_TCP /;
	probe receive(struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t * = skb->sk, ipinfo_t *skb, tcpsinfo_t * = skb->sk,
	    tcpinfo_t *skb) = fbt::tcp_v4_rcv:entry, fbt::tcp_v6_rcv:entry;

	/* The socket still has its old state. */
	probe connect__request(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, uintptr_t = 0, tcpsinfo_t *sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && new == TCP_STATE_SYN_SENT /;
	probe connect__established(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, uintptr_t = 0, tcpsinfo_t *sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_SENT &&
	    new == TCP_STATE_ESTABLISHED /;
	probe connect__refused(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, uintptr_t = 0, tcpsinfo_t *sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_SENT &&
	    new == TCP_STATE_CLOSED /;
	probe accept__established(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, uintptr_t = 0, tcpsinfo_t *sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_RECEIVED &&
	    new == TCP_STATE_ESTABLISHED /;

	probe accept__refused() = refuse("no socket is there where Linux sends the reset: tcp:::send has it, with TH_RST in args[4]->tcp_flags");
	probe state__change() = refuse("Linux tells before the socket has its new state: sdt:sock::inet_sock_set_state has the old and the new state");
};
