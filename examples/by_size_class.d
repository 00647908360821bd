/*
 * Are reads small or large?  (an inline function of D)
 * Run: kinst -s examples/by_size_class.d -c 'dd if=/dev/zero of=/dev/null bs=100 count=20; dd if=/dev/zero of=/dev/null bs=8k count=5' dd
 */
#pragma D option quiet
inline string class[int n] = n < 4096 ? "small" : "large";
fbt::vfs_read:entry
/execname == $$1/
{
	@[class[arg2]] = count();
}
