/*
 * Where do processes seek to?
 * Run: kinst -s examples/seeks.d -c COMMAND
 */
#pragma D option quiet
#pragma D option aggsortkey
fbt::ksys_lseek:entry
/execname == "deeds"/
{
	@[execname, arg1] = count();
}
END { printa("%s to %d: %@d\n", @); }
