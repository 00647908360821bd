/*
 * How big are reads?  (if and else)
 * Run: kinst -s examples/branches.d -c 'dd if=/dev/zero of=/dev/null bs=100 count=20; wc -c /etc/passwd' dd
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
