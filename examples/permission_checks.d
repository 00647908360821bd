/*
 * For which programs does the kernel check permissions?
 * Run: kinst -s examples/permission_checks.d -c 'ls -R /proc/sys/net | wc -l'
 */
#pragma D option quiet
fbt::inode_permission:entry { @[execname] = count(); }
