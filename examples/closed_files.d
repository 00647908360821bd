/*
 * How many files of a temporary file system does a program close?
 * Run: kinst -s examples/closed_files.d -c 'for n in 1 2 3 4 5 6; do echo $n >/tmp/$n; done' sh
 */
#pragma D option quiet
fbt::filp_close:entry
/execname == $$1 && stringof(args[0]->f_inode->i_sb->s_type->name) == "tmpfs"/
{
	n++;
}
END { printf("%s closes %s of /tmp\n", $$1, n >= 5 ? "5 or more" : lltostr(n)); }
