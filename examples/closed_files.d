/*
 * Who closes files of a temporary file system?
 * Run: kinst -s examples/closed_files.d -c COMMAND
 */
#pragma D option quiet
fbt::filp_close:entry
/execname == "deeds" && stringof(args[0]->f_inode->i_sb->s_type->name) == "tmpfs"/
{
	n++;
}
END { printf("deeds closes %s of /tmp\n", n >= 5 ? "5 or more" : lltostr(n)); }
