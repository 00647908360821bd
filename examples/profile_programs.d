/*
 * What runs, by samples?
 * Run: kinst -s examples/profile_programs.d -c COMMAND
 */
#pragma D option quiet
profile-97 { @[execname] = count(); }
