/*
 * Packets and sockets (Dynamic Tracing Guide, "ip Provider").
 *
 * Sources: include/linux/skbuff.h, include/uapi/linux/ip.h and ipv6.h, include/net/sock.h of Linux
 * 5.10 to 7.3.  The headers of a packet are at offsets from skb->head.
 */

inline struct iphdr *skb_ip4[struct sk_buff *S] = (struct iphdr *)(S->head + S->network_header);
inline struct ipv6hdr *skb_ip6[struct sk_buff *S] =
    (struct ipv6hdr *)(S->head + S->network_header);
inline int skb_protocol[struct sk_buff *S] =
    skb_ip4[S]->version == 4 ? skb_ip4[S]->protocol : skb_ip6[S]->nexthdr;

/*
 * The addresses of a socket; 2 is AF_INET.  A socket of IPv6 may have a connection of IPv4, with
 * addresses of IPv4 in those of IPv6 (RFC 4291, 2.5.5.2).
 */
inline int sock_is_ip4[struct sock *K] = K->__sk_common.skc_family == 2 ||
    (K->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0] == 0 &&
    K->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1] == 0 &&
    K->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2] == htonl(0xffff));
inline string sock_laddr[struct sock *K] = sock_is_ip4[K] ?
    inet_ntoa((ipaddr_t *)&K->__sk_common.skc_rcv_saddr) :
    inet_ntoa6((in6_addr_t *)&K->__sk_common.skc_v6_rcv_saddr);
inline string sock_raddr[struct sock *K] = sock_is_ip4[K] ?
    inet_ntoa((ipaddr_t *)&K->__sk_common.skc_daddr) :
    inet_ntoa6((in6_addr_t *)&K->__sk_common.skc_v6_daddr);

typedef struct pktinfo { uintptr_t pkt_addr; } pktinfo_t;

translator pktinfo_t < struct sk_buff *S > { pkt_addr = (uintptr_t)S; };

typedef struct csinfo {
    uintptr_t cs_addr; uint64_t cs_cid; pid_t cs_pid; zoneid_t cs_zoneid;
} csinfo_t;

translator csinfo_t < struct sock *K > {
    cs_addr = (uintptr_t)K;
    cs_cid = (uint64_t)K;
    cs_pid = refuse("several processes may share a socket");
    cs_zoneid = refuse("Linux has namespaces instead of zones");
};

typedef struct ipinfo {
    uint8_t ip_ver; uint16_t ip_plength; string ip_saddr; string ip_daddr;
} ipinfo_t;

translator ipinfo_t < struct sk_buff *S > {
    ip_ver = skb_ip4[S]->version;
    ip_plength = skb_ip4[S]->version == 4 ?
        ntohs(skb_ip4[S]->tot_len) - 4 * skb_ip4[S]->ihl : ntohs(skb_ip6[S]->payload_len);
    ip_saddr = skb_ip4[S]->version == 4 ? inet_ntoa((ipaddr_t *)&skb_ip4[S]->saddr) :
        inet_ntoa6((in6_addr_t *)&skb_ip6[S]->saddr);
    ip_daddr = skb_ip4[S]->version == 4 ? inet_ntoa((ipaddr_t *)&skb_ip4[S]->daddr) :
        inet_ntoa6((in6_addr_t *)&skb_ip6[S]->daddr);
};

typedef struct ifinfo {
    string if_name; int8_t if_local; int if_ipstack; uintptr_t if_addr;
} ifinfo_t;

/* 0x8 is IFF_LOOPBACK. */
translator ifinfo_t < struct sk_buff *S > {
    if_name = S->dev == NULL ? "<null>" : stringof(S->dev->name);
    if_local = S->dev == NULL ? 0 : (S->dev->flags & 0x8) != 0;
    if_ipstack = refuse("Linux has namespaces instead of stacks");
    if_addr = (uintptr_t)S->dev;
};

typedef struct ipv4info {
    uint8_t ipv4_ver; uint8_t ipv4_ihl; uint8_t ipv4_tos; uint16_t ipv4_length;
    uint16_t ipv4_ident; uint8_t ipv4_flags; uint16_t ipv4_offset; uint8_t ipv4_ttl;
    uint8_t ipv4_protocol; string ipv4_protostr; uint16_t ipv4_checksum;
    ipaddr_t ipv4_src; ipaddr_t ipv4_dst; string ipv4_saddr; string ipv4_daddr; uintptr_t ipv4_hdr;
} ipv4info_t;

translator ipv4info_t < struct sk_buff *S > {
    ipv4_ver = skb_ip4[S]->version;
    ipv4_ihl = 4 * skb_ip4[S]->ihl;
    ipv4_tos = skb_ip4[S]->tos;
    ipv4_length = ntohs(skb_ip4[S]->tot_len);
    ipv4_ident = ntohs(skb_ip4[S]->id);
    ipv4_flags = ntohs(skb_ip4[S]->frag_off) >> 12;
    ipv4_offset = (ntohs(skb_ip4[S]->frag_off) & 0x1fff) << 3;
    ipv4_ttl = skb_ip4[S]->ttl;
    ipv4_protocol = skb_ip4[S]->protocol;
    ipv4_protostr = skb_ip4[S]->protocol == IPPROTO_TCP ? "TCP" :
        skb_ip4[S]->protocol == IPPROTO_UDP ? "UDP" :
        skb_ip4[S]->protocol == IPPROTO_ICMP ? "ICMP" : lltostr(skb_ip4[S]->protocol);
    ipv4_checksum = ntohs(skb_ip4[S]->check);
    ipv4_src = skb_ip4[S]->saddr;
    ipv4_dst = skb_ip4[S]->daddr;
    ipv4_saddr = inet_ntoa((ipaddr_t *)&skb_ip4[S]->saddr);
    ipv4_daddr = inet_ntoa((ipaddr_t *)&skb_ip4[S]->daddr);
    ipv4_hdr = (uintptr_t)skb_ip4[S];
};

typedef struct ipv6info {
    uint8_t ipv6_ver; uint8_t ipv6_tclass; uint32_t ipv6_flow; uint16_t ipv6_plen;
    uint8_t ipv6_nexthdr; string ipv6_nextstr; uint8_t ipv6_hlim;
    in6_addr_t *ipv6_src; in6_addr_t *ipv6_dst; string ipv6_saddr; string ipv6_daddr;
    uintptr_t ipv6_hdr;
} ipv6info_t;

/* 58 is IPPROTO_ICMPV6. */
translator ipv6info_t < struct sk_buff *S > {
    ipv6_ver = skb_ip6[S]->version;
    ipv6_tclass = skb_ip6[S]->priority << 4 | skb_ip6[S]->flow_lbl[0] >> 4;
    ipv6_flow = (skb_ip6[S]->flow_lbl[0] & 0xf) << 16 | skb_ip6[S]->flow_lbl[1] << 8 |
        skb_ip6[S]->flow_lbl[2];
    ipv6_plen = ntohs(skb_ip6[S]->payload_len);
    ipv6_nexthdr = skb_ip6[S]->nexthdr;
    ipv6_nextstr = skb_ip6[S]->nexthdr == IPPROTO_TCP ? "TCP" :
        skb_ip6[S]->nexthdr == IPPROTO_UDP ? "UDP" :
        skb_ip6[S]->nexthdr == 58 ? "ICMPV6" : lltostr(skb_ip6[S]->nexthdr);
    ipv6_hlim = skb_ip6[S]->hop_limit;
    ipv6_src = (in6_addr_t *)&skb_ip6[S]->saddr;
    ipv6_dst = (in6_addr_t *)&skb_ip6[S]->daddr;
    ipv6_saddr = inet_ntoa6((in6_addr_t *)&skb_ip6[S]->saddr);
    ipv6_daddr = inet_ntoa6((in6_addr_t *)&skb_ip6[S]->daddr);
    ipv6_hdr = (uintptr_t)skb_ip6[S];
};
