/*
 * What are the names of the parent process and of its parent?
 * Run: kinst -s examples/ancestors.d -c 'sh -c date; true' sh
 */
#pragma D option quiet
syscall::getppid:entry
/execname == $$1 && !shown++/
{
	printf("%s <- %s <- %s\n", execname, stringof(curthread->real_parent->comm),
	    stringof(curthread->real_parent->real_parent->comm));
}
