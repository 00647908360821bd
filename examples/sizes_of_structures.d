/*
 * How big is a task's structure, and at which offset is the name in it?
 * Run: kinst -s examples/sizes_of_structures.d -c 'sh -c date; true'
 */
#pragma D option quiet
syscall::getppid:entry
/!shown++/
{
	printf("task_struct %d bytes, comm at %d\n", sizeof (struct task_struct),
	    offsetof(struct task_struct, comm));
}
