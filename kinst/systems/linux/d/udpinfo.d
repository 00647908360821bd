/*
 * Datagrams and sockets of UDP (Dynamic Tracing Guide, "udp Provider").
 *
 * Sources: include/uapi/linux/udp.h, include/net/sock.h of Linux 5.10 to 7.3.
 */

#pragma D depends_on library ipinfo.d

inline struct udphdr *skb_udp[struct sk_buff *S] =
    (struct udphdr *)(S->head + S->transport_header);

typedef struct udpinfo {
    uint16_t udp_sport; uint16_t udp_dport; uint16_t udp_length; uint16_t udp_checksum;
    uintptr_t udp_hdr;
} udpinfo_t;

translator udpinfo_t < struct sk_buff *S > {
    udp_sport = ntohs(skb_udp[S]->source);
    udp_dport = ntohs(skb_udp[S]->dest);
    udp_length = ntohs(skb_udp[S]->len);
    udp_checksum = ntohs(skb_udp[S]->check);
    udp_hdr = (uintptr_t)skb_udp[S];
};

typedef struct udpsinfo {
    uintptr_t udps_addr; uint16_t udps_lport; uint16_t udps_rport;
    string udps_laddr; string udps_raddr;
} udpsinfo_t;

translator udpsinfo_t < struct sock *K > {
    udps_addr = (uintptr_t)K;
    udps_lport = K->__sk_common.skc_num;
    udps_rport = ntohs(K->__sk_common.skc_dport);
    udps_laddr = sock_laddr[K];
    udps_raddr = sock_raddr[K];
};
