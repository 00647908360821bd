/*
 * Which arguments had the opens that failed?  (speculation)
 * Run: kinst -s examples/failing_opens_in_detail.d -c 'cat /etc/passwd /no/such/file' cat
 */
#pragma D option quiet
#pragma D option nspec=16
fbt::do_sys_openat2:entry
/execname == $$1/
{
	self->spec = speculation();
	speculate(self->spec);
	printf("opening %s, flags %o\n", copyinstr(arg1), args[2]->flags);
}
fbt::do_sys_openat2:return
/self->spec && errno/
{
	speculate(self->spec);
	printf("failed with %d\n", -errno);
}
fbt::do_sys_openat2:return
/self->spec && errno/
{
	commit(self->spec);
	self->spec = 0;
}
fbt::do_sys_openat2:return
/self->spec/
{
	discard(self->spec);
	self->spec = 0;
}
