/*
 * Which CPUs are sampled, 97 times a second each?
 * Run: kinst -s examples/profile_cpus.d -c COMMAND
 */
#pragma D option quiet
profile-97 { @[cpu] = count(); }
