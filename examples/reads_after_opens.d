/*
 * Which reads are the first of their file?
 * Run: kinst -s examples/reads_after_opens.d -c COMMAND
 */
#pragma D option quiet
fbt::do_dentry_open:entry { fresh[arg0] = 1; }
fbt::vfs_read:entry
/fresh[arg0] && execname == "deeds"/
{
	@[stringof(args[0]->f_path.dentry->d_name.name)] = count();
	fresh[arg0] = 0;
}
