/*
 * Segments and sockets of TCP (Dynamic Tracing Guide, "tcp Provider").  The numbers of states are
 * Linux's (include/net/tcp_states.h).
 *
 * Sources: include/uapi/linux/tcp.h, include/linux/tcp.h, include/net/sock.h of Linux 5.10 to 7.3.
 * The flags of a segment are in byte 13 of its header (RFC 9293, 3.1).
 */

#pragma D depends_on library ipinfo.d

inline int TCP_STATE_ESTABLISHED = 1;
inline int TCP_STATE_SYN_SENT = 2;
inline int TCP_STATE_SYN_RECEIVED = 3;
inline int TCP_STATE_FIN_WAIT_1 = 4;
inline int TCP_STATE_FIN_WAIT_2 = 5;
inline int TCP_STATE_TIME_WAIT = 6;
inline int TCP_STATE_CLOSED = 7;
inline int TCP_STATE_CLOSE_WAIT = 8;
inline int TCP_STATE_LAST_ACK = 9;
inline int TCP_STATE_LISTEN = 10;
inline int TCP_STATE_CLOSING = 11;
inline string tcp_state_string[int32_t state] =
    state == TCP_STATE_ESTABLISHED ? "state-established" :
    state == TCP_STATE_SYN_SENT ? "state-syn-sent" :
    state == TCP_STATE_SYN_RECEIVED ? "state-syn-received" :
    state == TCP_STATE_FIN_WAIT_1 ? "state-fin-wait-1" :
    state == TCP_STATE_FIN_WAIT_2 ? "state-fin-wait-2" :
    state == TCP_STATE_TIME_WAIT ? "state-time-wait" :
    state == TCP_STATE_CLOSED ? "state-closed" :
    state == TCP_STATE_CLOSE_WAIT ? "state-close-wait" :
    state == TCP_STATE_LAST_ACK ? "state-last-ack" :
    state == TCP_STATE_LISTEN ? "state-listen" :
    state == TCP_STATE_CLOSING ? "state-closing" : "<unknown>";
inline uint8_t TH_FIN = 0x01;
inline uint8_t TH_SYN = 0x02;
inline uint8_t TH_RST = 0x04;
inline uint8_t TH_PUSH = 0x08;
inline uint8_t TH_ACK = 0x10;
inline uint8_t TH_URG = 0x20;
inline uint8_t TH_ECE = 0x40;
inline uint8_t TH_CWR = 0x80;

inline struct tcphdr *skb_tcp[struct sk_buff *S] =
    (struct tcphdr *)(S->head + S->transport_header);

typedef struct tcpinfo {
    uint16_t tcp_sport; uint16_t tcp_dport; uint32_t tcp_seq; uint32_t tcp_ack;
    uint8_t tcp_offset; uint8_t tcp_flags; uint16_t tcp_window; uint16_t tcp_checksum;
    uint16_t tcp_urgent; uintptr_t tcp_hdr;
} tcpinfo_t;

translator tcpinfo_t < struct sk_buff *S > {
    tcp_sport = ntohs(skb_tcp[S]->source);
    tcp_dport = ntohs(skb_tcp[S]->dest);
    tcp_seq = ntohl(skb_tcp[S]->seq);
    tcp_ack = ntohl(skb_tcp[S]->ack_seq);
    tcp_offset = 4 * skb_tcp[S]->doff;
    tcp_flags = *((uint8_t *)skb_tcp[S] + 13);
    tcp_window = ntohs(skb_tcp[S]->window);
    tcp_checksum = ntohs(skb_tcp[S]->check);
    tcp_urgent = ntohs(skb_tcp[S]->urg_ptr);
    tcp_hdr = (uintptr_t)skb_tcp[S];
};

typedef struct tcpsinfo {
    uintptr_t tcps_addr; int tcps_local; int tcps_active;
    uint16_t tcps_lport; uint16_t tcps_rport; string tcps_laddr; string tcps_raddr;
    int32_t tcps_state; uint32_t tcps_iss; uint32_t tcps_suna; uint32_t tcps_snxt;
    uint32_t tcps_rack; uint32_t tcps_rnxt; uint32_t tcps_swnd; int32_t tcps_snd_ws;
    uint32_t tcps_rwnd; int32_t tcps_rcv_ws; uint32_t tcps_cwnd; uint32_t tcps_cwnd_ssthresh;
    uint32_t tcps_rto; uint32_t tcps_mss; int tcps_retransmit;
} tcpsinfo_t;

translator tcpsinfo_t < struct sock *K > {
    tcps_addr = (uintptr_t)K;
    tcps_local = refuse("a socket does not know whether its peer is on this machine: args[2]");
    tcps_active = refuse("a socket does not know which side has begun");
    tcps_lport = K->__sk_common.skc_num;
    tcps_rport = ntohs(K->__sk_common.skc_dport);
    tcps_laddr = sock_laddr[K];
    tcps_raddr = sock_raddr[K];
    tcps_state = K->__sk_common.skc_state;
    tcps_iss = refuse("Linux keeps no initial sequence number of its own");
    tcps_suna = ((struct tcp_sock *)K)->snd_una;
    tcps_snxt = ((struct tcp_sock *)K)->snd_nxt;
    tcps_rack = ((struct tcp_sock *)K)->rcv_wup;
    tcps_rnxt = ((struct tcp_sock *)K)->rcv_nxt;
    tcps_swnd = ((struct tcp_sock *)K)->snd_wnd;
    tcps_snd_ws = ((struct tcp_sock *)K)->rx_opt.snd_wscale;
    tcps_rwnd = ((struct tcp_sock *)K)->rcv_wnd;
    tcps_rcv_ws = ((struct tcp_sock *)K)->rx_opt.rcv_wscale;
    tcps_cwnd = ((struct tcp_sock *)K)->snd_cwnd * ((struct tcp_sock *)K)->mss_cache;
    tcps_cwnd_ssthresh =
        ((struct tcp_sock *)K)->snd_ssthresh * ((struct tcp_sock *)K)->mss_cache;
    tcps_rto = refuse("it is kept in ticks of a length that the kernel does not tell");
    tcps_mss = ((struct tcp_sock *)K)->mss_cache;
    tcps_retransmit = refuse("a socket does not know whether the segment is sent again");
};

/*
 * Segments of which only the socket is known, because Linux tells of the change that they make in
 * the socket: one that is sent, and one that is received.
 */
struct tcp_outgoing { uint8_t unused; };
struct tcp_incoming { uint8_t unused; };

translator ipinfo_t < struct tcp_outgoing *T > {
    ip_ver = sock_is_ip4[(struct sock *)T] ? 4 : 6;
    ip_plength = refuse("Linux tells of the connection, not of a segment: tcp:::send");
    ip_saddr = sock_laddr[(struct sock *)T];
    ip_daddr = sock_raddr[(struct sock *)T];
};
translator tcpinfo_t < struct tcp_outgoing *T > {
    tcp_sport = ((struct sock *)T)->__sk_common.skc_num;
    tcp_dport = ntohs(((struct sock *)T)->__sk_common.skc_dport);
    tcp_seq = refuse("Linux tells of the connection, not of a segment: tcp:::send");
    tcp_ack = refuse("Linux tells of the connection, not of a segment: tcp:::send");
    tcp_flags = refuse("Linux tells of the connection, not of a segment: tcp:::send");
    tcp_window = refuse("Linux tells of the connection, not of a segment: tcp:::send");
};
translator ipinfo_t < struct tcp_incoming *T > {
    ip_ver = sock_is_ip4[(struct sock *)T] ? 4 : 6;
    ip_plength = refuse("Linux tells of the connection, not of a segment: tcp:::receive");
    ip_saddr = sock_raddr[(struct sock *)T];
    ip_daddr = sock_laddr[(struct sock *)T];
};
translator tcpinfo_t < struct tcp_incoming *T > {
    tcp_sport = ntohs(((struct sock *)T)->__sk_common.skc_dport);
    tcp_dport = ((struct sock *)T)->__sk_common.skc_num;
    tcp_seq = refuse("Linux tells of the connection, not of a segment: tcp:::receive");
    tcp_ack = refuse("Linux tells of the connection, not of a segment: tcp:::receive");
    tcp_flags = refuse("Linux tells of the connection, not of a segment: tcp:::receive");
    tcp_window = refuse("Linux tells of the connection, not of a segment: tcp:::receive");
};

/* The reset that answers a packet: from its destination to its source. */
struct tcp_reset { uint8_t unused; };

translator ipinfo_t < struct tcp_reset *T > {
    ip_ver = skb_ip4[(struct sk_buff *)T]->version;
    ip_plength = 20;
    ip_saddr = skb_ip4[(struct sk_buff *)T]->version == 4 ?
        inet_ntoa((ipaddr_t *)&skb_ip4[(struct sk_buff *)T]->daddr) :
        inet_ntoa6((in6_addr_t *)&skb_ip6[(struct sk_buff *)T]->daddr);
    ip_daddr = skb_ip4[(struct sk_buff *)T]->version == 4 ?
        inet_ntoa((ipaddr_t *)&skb_ip4[(struct sk_buff *)T]->saddr) :
        inet_ntoa6((in6_addr_t *)&skb_ip6[(struct sk_buff *)T]->saddr);
};
translator tcpinfo_t < struct tcp_reset *T > {
    tcp_sport = ntohs(skb_tcp[(struct sk_buff *)T]->dest);
    tcp_dport = ntohs(skb_tcp[(struct sk_buff *)T]->source);
    tcp_seq = 0;
    tcp_ack = ntohl(skb_tcp[(struct sk_buff *)T]->seq) + 1;
    tcp_offset = 20;
    tcp_flags = TH_RST | TH_ACK;
    tcp_window = 0;
    tcp_urgent = 0;
};

/* A socket that gets another state: the probe's arg2 is the new one. */
struct tcp_changing { uint8_t unused; };
typedef struct tcplsinfo { int32_t tcps_state; } tcplsinfo_t;

translator tcplsinfo_t < int S > { tcps_state = S; };
translator tcpsinfo_t < struct tcp_changing *T > {
    tcps_addr = (uintptr_t)T;
    tcps_lport = ((struct sock *)T)->__sk_common.skc_num;
    tcps_rport = ntohs(((struct sock *)T)->__sk_common.skc_dport);
    tcps_laddr = sock_laddr[(struct sock *)T];
    tcps_raddr = sock_raddr[(struct sock *)T];
    tcps_state = arg2;
};
