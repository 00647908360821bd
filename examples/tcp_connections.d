/*
 * Which TCP connections are asked for, made, and refused, and by which program?
 * Run: kinst -s examples/tcp_connections.d -c 'ifconfig lo up; nc -l -p 5000 & sleep 1; nc 127.0.0.1 5000 </dev/null; nc 127.0.0.1 5001 </dev/null'
 */
#pragma D option quiet
tcp:::connect-request, tcp:::connect-established, tcp:::connect-refused, tcp:::accept-established
{
	printf("%s: %s, port %d to %s port %d\n", execname, probename, args[3]->tcps_lport,
	    args[3]->tcps_raddr, args[3]->tcps_rport);
}
