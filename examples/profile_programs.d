/*
 * Which programs run, by samples?
 * Run: kinst -s examples/profile_programs.d -c 'for n in 1 2 3 4 5; do md5sum /bin/busybox; done'
 */
#pragma D option quiet
profile-97 { @[execname] = count(); }
