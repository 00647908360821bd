/*
 * How many system calls do the command and its descendants make together?  (progenyof)
 * Run: kinst -s examples/following_children.d -c 'date; uname -r'
 */
#pragma D option quiet
syscall:::entry
/progenyof($target)/
{
	@[pid] = count();
}
