/*
 * What do programs do with files, and in which of the mounted file systems?
 * Run: kinst -s examples/operations_on_files.d -c 'cp /etc/passwd /tmp; ls /dev > /dev/null'
 */
#pragma D option quiet
fsinfo::: { @[execname, args[0]->fi_mount, probename] = count(); }
