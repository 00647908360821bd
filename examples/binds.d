/*
 * Who binds sockets to which ports?  (the address is still the kernel's copy here)
 * Run: kinst -s examples/binds.d -c 'nc -l -p 7777 & usleep 100000; echo hello | nc 127.0.0.1 7777'
 */
#pragma D option quiet
fbt::inet_bind:entry
{
	printf("%s binds port %d\n", execname, ntohs(((struct sockaddr_in *)arg1)->sin_port));
}
