/*
 * Who has permissions checked?
 * Run: kinst -s examples/permission_checks.d -c COMMAND
 */
#pragma D option quiet
fbt::inode_permission:entry { @[execname] = count(); }
