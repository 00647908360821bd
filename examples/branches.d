/*
 * How big are reads?  (if and else)
 * Run: kinst -s examples/branches.d -c COMMAND
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == "deeds"/
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
