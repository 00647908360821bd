/*
 * Which programs bind sockets, to which ports?  (the address is still the kernel's copy here)
 * Run: kinst -s examples/binds.d -c 'httpd -p 127.0.0.1:8080 -h /etc; wget -q -O - http://127.0.0.1:8080/group'
 */
#pragma D option quiet
fbt::inet_bind:entry
{
	printf("%s binds port %d\n", execname, ntohs(((struct sockaddr_in *)arg1)->sin_port));
}
