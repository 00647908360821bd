/*
 * Which programs' reads, writes and opens fail, and with which error?
 * Run: kinst -s examples/system_call_errors.d -c 'cat /etc/passwd /no/such/file'
 */
#pragma D option quiet
fbt::ksys_read:return, fbt::ksys_write:return, fbt::do_sys_openat2:return
/(long)arg1 < 0 && (long)arg1 > -4096/
{
	@[execname, probefunc, -(int)arg1] = count();
}
END { printa("%-16s %-28s %4d %@d\n", @); }
