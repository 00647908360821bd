/*
 * Which programs' system calls fail, and with which error?
 * Run: kinst -s examples/system_call_errors.d -c 'cat /etc/passwd /no/such/file'
 */
#pragma D option quiet
syscall:::return
/errno != 0/
{
	@[execname, probefunc, errno] = count();
}
END { printa("%-16s %-28s %4d %@d\n", @); }
