/*
 * Which file systems are read from?
 * Run: kinst -s examples/file_systems.d -c 'md5sum /etc/passwd /proc/cpuinfo /bin/sh' md5sum
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	@[stringof(args[0]->f_inode->i_sb->s_type->name)] = count();
}
