/*
 * Which files are opened?  (one line for each)
 * Run: kinst -s examples/opensnoop.d -c 'md5sum /etc/passwd /proc/cpuinfo'
 */
#pragma D option quiet
BEGIN { printf("%6s %-16s %4s %s\n", "PID", "COMM", "FD", "PATH"); }
fbt::do_sys_openat2:entry { self->path = arg1; self->in = 1; }
fbt::do_sys_openat2:return
/self->in/
{
	printf("%6d %-16s %4d %s\n", pid, execname, (int)arg1, copyinstr(self->path));
	self->in = 0;
	self->path = 0;
}
