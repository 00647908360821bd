/*
 * Which TCP segments are sent, with which flags and sizes?
 * Run: kinst -s examples/segments.d -c 'ifconfig lo up; nc -l -p 5000 & sleep 1; echo hello | nc 127.0.0.1 5000'
 */
#pragma D option quiet
tcp:::send
{
	printf("%s:%d > %s:%d %4d bytes%s%s%s%s\n",
	    args[2]->ip_saddr, args[4]->tcp_sport, args[2]->ip_daddr, args[4]->tcp_dport,
	    args[2]->ip_plength - args[4]->tcp_offset,
	    args[4]->tcp_flags & TH_SYN ? " SYN" : "", args[4]->tcp_flags & TH_FIN ? " FIN" : "",
	    args[4]->tcp_flags & TH_RST ? " RST" : "", args[4]->tcp_flags & TH_ACK ? " ACK" : "");
}
