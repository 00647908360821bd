/*
 * Which names and ids does the current task's structure contain?
 * Run: kinst -s examples/current_task.d -c 'sh -c date; true'
 */
#pragma D option quiet
syscall::getppid:entry
{
	printf("%s pid %d prio %d\n", stringof(curthread->comm), curthread->tgid, curthread->prio);
}
