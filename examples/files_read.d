/*
 * Which files are read?  (names of directory entries)
 * Run: kinst -s examples/files_read.d -c 'md5sum /etc/passwd /proc/cpuinfo' md5sum
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	@[stringof(args[0]->f_path.dentry->d_name.name)] = count();
}
