/*
 * Between which addresses do IP packets go, and with how many bytes?
 * Run: kinst -s examples/ip_traffic.d -c 'ifconfig lo up; ping -c 3 127.0.0.1'
 */
#pragma D option quiet
ip:::send { @["sent", args[2]->ip_saddr, args[2]->ip_daddr] = quantize(args[2]->ip_plength); }
ip:::receive { @["received", args[2]->ip_saddr, args[2]->ip_daddr] = quantize(args[2]->ip_plength); }
