/*
 * Which structure in user memory is the argument of a system call?  (copyin of a struct timespec)
 * Run: kinst -s examples/syscall_arguments.d -c 'sleep 0.01' sleep
 */
#pragma D option quiet
struct when { long sec; long nsec; };
syscall::clock_nanosleep:entry
/execname == $$1 && pid == $target/
{
	this->t = (struct when *)copyin(arg2, sizeof (struct when));
	printf("nanosleep of %d ns\n", this->t->sec * 1000000000 + this->t->nsec);
}
