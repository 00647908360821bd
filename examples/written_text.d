/*
 * What does a process write?  (copyin, printed as a string)
 * Run: kinst -s examples/written_text.d -c COMMAND
 */
#pragma D option quiet
fbt::ksys_write:entry
/execname == "deeds" && arg0 == 1/
{
	printf("%s", stringof(copyin(arg1, arg2)));
}
