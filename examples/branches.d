/*
 * How many reads ask for 1, 100 or 4096 bytes?  (if and else)
 * Run: kinst -s examples/branches.d -c 'for size in 1 7 100 4k; do dd if=/dev/zero of=/dev/null bs=$size count=9; done' dd
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1/
{
	if (arg2 == 1) {
		one++;
	} else if (arg2 == 100) {
		hundred++;
	} else if (arg2 == 4096) {
		page++;
	} else {
		other++;
	}
}
END { printf("one %d, hundred %d, page %d, other %d\n", one, hundred, page, other); }
