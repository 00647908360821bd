/*
 * Which system calls fail, of whom, with which error?
 * Run: kinst -s examples/system_call_errors.d -c COMMAND
 */
#pragma D option quiet
fbt::ksys_*:return, fbt::do_sys_*:return
/(long)arg1 < 0 && (long)arg1 > -4096/
{
	@[execname, probefunc, -(int)arg1] = count();
}
END { printa("%-16s %-28s %4d %@d\n", @); }
