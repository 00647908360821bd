/*
 * What does a process write?  (copyin, printed as a string)
 * Run: kinst -s examples/written_text.d -c 'sort -r /etc/group' sort
 */
#pragma D option quiet
fbt::ksys_write:entry
/execname == $$1 && arg0 == 1/
{
	printf("%s", stringof(copyin(arg1, arg2)));
}
