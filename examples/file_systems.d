/*
 * Which file systems are read from?
 * Run: kinst -s examples/file_systems.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == "deeds"/
{
	@[stringof(args[0]->f_inode->i_sb->s_type->name)] = count();
}
