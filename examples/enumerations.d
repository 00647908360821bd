/*
 * Which values do the constants of an enumeration of the kernel have?
 * Run: kinst -s examples/enumerations.d -c 'sh -c date; true'
 */
#pragma D option quiet
syscall::getppid:entry
/!shown++/
{
	printf("PIDTYPE_PID is %d, PIDTYPE_TGID is %d\n", PIDTYPE_PID, PIDTYPE_TGID);
}
