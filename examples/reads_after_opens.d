/*
 * Which reads are the first of their file?
 * Run: kinst -s examples/reads_after_opens.d -c 'md5sum /etc/passwd /proc/cpuinfo' md5sum
 */
#pragma D option quiet
fbt::do_dentry_open:entry { fresh[arg0] = 1; }
/* When a file is closed, the kernel may use its memory for another file, such as a pipe, which is never opened. */
fbt::__fput:entry { fresh[arg0] = 0; }
fbt::vfs_read:entry
/fresh[arg0] && execname == $$1/
{
	@[stringof(args[0]->f_path.dentry->d_name.name)] = count();
	fresh[arg0] = 0;
}
