/*
 * Which functions does one unlink(2) go through?  (flow, by indentation)
 * Run: kinst -s examples/path_of_an_unlink.d -c COMMAND
 */
#pragma D option flowindent
fbt::do_unlinkat:entry
/execname == "deeds" && !done/
{
	self->in = 1;
	done = 1;
}
fbt::do_unlinkat:entry, fbt::vfs_*:entry, fbt::d_*:entry, fbt::may_*:entry
/self->in/
{
}
fbt::do_unlinkat:return, fbt::vfs_*:return, fbt::d_*:return, fbt::may_*:return
/self->in/
{
}
fbt::do_unlinkat:return
/self->in/
{
	self->in = 0;
}
