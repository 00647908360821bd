/*
 * Which names are opened, in capitals, without their directories?  (basename, toupper)
 * Run: kinst -s examples/names_of_opens.d -c 'md5sum /etc/passwd /etc/group' md5sum
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
	@[toupper(basename(copyinstr(self->path)))] = count();
	self->path = 0;
}
