/*
 * How often is each CPU sampled, at 97 times a second?
 * Run: kinst -s examples/profile_cpus.d -c 'md5sum /bin/busybox; sleep 0.2'
 */
#pragma D option quiet
profile-97 { @[cpu] = count(); }
