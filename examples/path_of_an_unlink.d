/*
 * Which functions does one unlink(2) go through?  (flowindent)
 * Run: kinst -s examples/path_of_an_unlink.d -c 'touch /tmp/x; rm /tmp/x' rm
 */
#pragma D option flowindent
fbt::do_unlinkat:entry
/execname == $$1 && !done/
{
	self->in = 1;
	done = 1;
}
fbt::do_unlinkat:entry, fbt::vfs_unlink:entry, fbt::may_delete:entry, fbt::d_delete:entry
/self->in/
{
}
fbt::do_unlinkat:return, fbt::vfs_unlink:return, fbt::may_delete:return, fbt::d_delete:return
/self->in/
{
}
fbt::do_unlinkat:return
/self->in/
{
	self->in = 0;
}
