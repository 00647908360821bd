/*
 * Are reads small or large?  (an inline function of D)
 * Run: kinst -s examples/by_size_class.d -c COMMAND
 */
#pragma D option quiet
inline string class[int n] = n < 4096 ? "small" : "large";
fbt::vfs_read:entry
/execname == "deeds"/
{
	@[class[arg2]] = count();
}
