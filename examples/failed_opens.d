/*
 * Which programs fail to open files, and with which error?
 * Run: kinst -s examples/failed_opens.d -c 'cat /etc/passwd /no/such/file'
 */
#pragma D option quiet
fbt::do_sys_openat2:entry { self->path = arg1; }
fbt::do_sys_openat2:return
/self->path && errno/
{
	@[execname, copyinstr(self->path), errno] = count();
}
fbt::do_sys_openat2:return { self->path = 0; }
