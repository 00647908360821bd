/*
 * What are the first ten reads?  (exit)
 * Run: kinst -s examples/first_ten.d -c 'dd if=/dev/zero of=/dev/null bs=4k count=50' dd
 */
#pragma D option quiet
fbt::vfs_read:entry
/execname == $$1 && n < 10/
{
	n++;
	printf("%s reads %d\n", execname, arg2);
}
fbt::vfs_read:entry
/n == 10/
{
	exit(0);
}
