/*
 * How long do requests to a disk take, by device and direction?
 * Run: kinst -s examples/disk_latency.d --module loop -c 'dd if=/dev/zero of=/d bs=1M count=4; losetup /dev/loop0 /d; dd if=/dev/loop0 of=/dev/null'
 */
#pragma D option quiet
io:::start { begun[args[0]->b_edev, args[0]->b_blkno] = timestamp; }
io:::done
/begun[args[0]->b_edev, args[0]->b_blkno]/
{
	@[args[1]->dev_statname, args[0]->b_flags & B_READ ? "read" : "write"] =
	    quantize(timestamp - begun[args[0]->b_edev, args[0]->b_blkno]);
	begun[args[0]->b_edev, args[0]->b_blkno] = 0;
}
