/*
 * Which files are opened, and with which result, in the form of truss(1)?  (strjoin)
 * Run: kinst -s examples/calls_and_their_results.d -c 'cat /etc/passwd /no/such/file' cat
 */
#pragma D option quiet
fbt::do_sys_openat2:entry
/execname == $$1/
{
	self->call = strjoin("open(", strjoin(copyinstr(arg1), ")"));
}
fbt::do_sys_openat2:return
/self->call != NULL && execname == $$1/
{
	printf("%s = %d\n", self->call, (int)arg1);
	self->call = 0;
}
