/*
 * In which directories does the command open files?  (dirname)
 * Run: kinst -s examples/directories_of_opens.d -c 'md5sum /etc/passwd /etc/group /proc/cpuinfo' md5sum
 */
#pragma D option quiet
fbt::do_sys_openat2:entry
/execname == $$1/
{
	self->path = arg1;
}
fbt::do_sys_openat2:return
/self->path/
{
	@[dirname(copyinstr(self->path))] = count();
	self->path = 0;
}
