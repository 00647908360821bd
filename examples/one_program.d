/*
 * How often does the program read whose name is the argument?  (macro $$1)
 * Run: kinst -s examples/one_program.d -c 'wc -l /etc/passwd /proc/meminfo' wc
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	@ = count();
}
END { printf("reads of %s:", $$1); printa(" %@d\n", @); }
