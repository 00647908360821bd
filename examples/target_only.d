/*
 * How often does the command itself read, without its children?  ($target)
 * Run: kinst -s examples/target_only.d -c 'wc -l /etc/passwd /proc/meminfo'
 */
#pragma D option quiet
fbt::vfs_read:entry
/pid == $target/
{
	@ = count();
}
