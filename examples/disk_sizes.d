/*
 * Which files do requests to a disk read, and how many bytes at once?
 * Run: kinst -s examples/disk_sizes.d --module loop -c 'dd if=/dev/zero of=/d bs=1M count=4; losetup /dev/loop0 /d; dd if=/dev/loop0 of=/dev/null'
 */
#pragma D option quiet
io:::start
/args[0]->b_flags & B_READ/
{
	@[execname, args[2]->fi_name, args[2]->fi_fs] = quantize(args[0]->b_bcount);
}
