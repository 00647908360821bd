/*
 * Who are the parent and the parent's parent?
 * Run: kinst -s examples/ancestors.d -c COMMAND
 */
#pragma D option quiet
fbt::__x64_sys_getppid:entry
/execname == "deeds" && !shown++/
{
	printf("%s <- %s <- %s\n", execname, stringof(curthread->real_parent->comm),
	    stringof(curthread->real_parent->real_parent->comm));
}
