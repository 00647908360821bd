/*
 * Which files are renamed, and to which names?
 * Run: kinst -s examples/renames.d -c 'touch /tmp/x; mv /tmp/x /tmp/y'
 */
#pragma D option quiet
fbt::vfs_rename:entry
{
	printf("%s renames %s to %s\n", execname, stringof(args[0]->old_dentry->d_name.name),
	    stringof(args[0]->new_dentry->d_name.name));
}
