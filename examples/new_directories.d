/*
 * Which directories are created?
 * Run: kinst -s examples/new_directories.d -c 'mkdir -p /tmp/a/b/c'
 */
#pragma D option quiet
fbt::vfs_mkdir:entry
{
	printf("%s makes %s\n", execname, stringof(args[2]->d_name.name));
}
