/*
 * Which files are unlinked?
 * Run: kinst -s examples/unlinked_files.d -c 'touch /tmp/x /tmp/y; rm /tmp/x /tmp/y'
 */
#pragma D option quiet
fbt::vfs_unlink:entry
{
	printf("%s unlinks %s\n", execname, stringof(args[2]->d_name.name));
}
