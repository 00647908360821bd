/*
 * What do the first bytes of the current task look like?  (tracemem)
 * Run: kinst -s examples/dump_of_a_task.d -c 'sh -c date; true'
 */
#pragma D option quiet
syscall::getppid:entry
/!shown++/
{
	tracemem(curthread, 32);
}
