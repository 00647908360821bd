/*
 * Which members has the name of a directory entry?  (print() of a structure)
 * Run: kinst -s examples/shown_structure.d -c 'touch /tmp/x; rm /tmp/x'
 */
#pragma D option quiet
fbt::vfs_unlink:entry
/!shown++/
{
	print(args[2]->d_name);
}
