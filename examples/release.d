/*
 * Which release of the kernel is this?
 * Run: kinst -s examples/release.d
 */
#pragma D option quiet
BEGIN
{
	printf("%s %s\n", stringof(`init_uts_ns.name.sysname), stringof(`init_uts_ns.name.release));
	exit(0);
}
