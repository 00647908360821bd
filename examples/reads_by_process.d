/*
 * Which processes call read(2), how often?
 * Run: kinst -s examples/reads_by_process.d -c 'wc -l /etc/passwd; md5sum /bin/busybox'
 */
#pragma D option quiet
fbt::ksys_read:entry { @[execname] = count(); }
