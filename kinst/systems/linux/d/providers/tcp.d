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
	probe state__change(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, uintptr_t = 0, tcpsinfo_t * = (struct tcp_changing *)sk,
	    uintptr_t = 0, tcplsinfo_t *old) =
	    sdt:sock::inet_sock_set_state / sk->sk_protocol == IPPROTO_TCP /;
	probe connect__request(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, ipinfo_t * = (struct tcp_outgoing *)sk, tcpsinfo_t *sk,
	    tcpinfo_t * = (struct tcp_outgoing *)sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && new == TCP_STATE_SYN_SENT /;
	/* The segment that completes the connection, as on illumos. */
	probe connect__established(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, ipinfo_t * = (struct tcp_outgoing *)sk, tcpsinfo_t *sk,
	    tcpinfo_t * = (struct tcp_outgoing *)sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_SENT &&
	    new == TCP_STATE_ESTABLISHED /;
	probe connect__refused(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, ipinfo_t * = (struct tcp_incoming *)sk, tcpsinfo_t *sk,
	    tcpinfo_t * = (struct tcp_incoming *)sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_SENT &&
	    new == TCP_STATE_CLOSED /;
	probe accept__established(struct sock *sk, int old, int new) :
	    (uintptr_t = 0, csinfo_t *sk, ipinfo_t * = (struct tcp_incoming *)sk, tcpsinfo_t *sk,
	    tcpinfo_t * = (struct tcp_incoming *)sk) =
	    sdt:sock::inet_sock_set_state
	    / sk->sk_protocol == IPPROTO_TCP && old == TCP_STATE_SYN_RECEIVED &&
	    new == TCP_STATE_ESTABLISHED /;

	/* The reset that answers a segment with SYN, but without ACK. */
	probe accept__refused(const struct sock *sk, struct sk_buff *skb) :
	    (pktinfo_t *skb, csinfo_t * = (struct sock *)sk, ipinfo_t * = (struct tcp_reset *)skb,
	    tcpsinfo_t * = (struct sock *)sk, tcpinfo_t * = (struct tcp_reset *)skb) =
	    fbt::tcp_v4_send_reset:entry, fbt::tcp_v6_send_reset:entry
	    / (*((uint8_t *)skb_tcp[skb] + 13) & (TH_SYN | TH_ACK)) == TH_SYN /;
};
