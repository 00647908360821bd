/*
 * How long do files stay open?  (an associative array)
 * Run: kinst -s examples/open_to_close.d -c 'md5sum /etc/passwd /proc/cpuinfo' md5sum
 */
#pragma D option quiet
fbt::do_dentry_open:entry
/execname == $$1/
{
	opened[arg0] = timestamp;
}
fbt::filp_close:entry
/opened[arg0]/
{
	@[stringof(((struct file *)arg0)->f_path.dentry->d_name.name)] =
	    quantize(timestamp - opened[arg0]);
	opened[arg0] = 0;
}
END { printa("  %s\n%@d\n", @); }
