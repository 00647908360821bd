/*
 * Which files are read?  (names of directory entries)
 * Run: kinst -s examples/files_read.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == "deeds"/
{
	@[stringof(args[0]->f_path.dentry->d_name.name)] = count();
}
