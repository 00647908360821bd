/*
 * Memory (Dynamic Tracing Guide, "vminfo Provider"), where Linux has the same: arg0 is by how much
 * the statistic grows.  Names of /proc/vmstat are those of the kernel's own statistic.
 *
 * Sources, of Linux 5.10 to 7.3: mm/memory.c, mm/vmscan.c, block/blk-core.c,
 * include/trace/events/vmscan.h, include/linux/mm_types.h.  Of the result of handle_mm_fault(),
 * 0x4 is VM_FAULT_MAJOR and 0x400 is VM_FAULT_RETRY: the fault is tried once more.
 */

provider vminfo {
	/* pgfault and pgmajfault. */
	probe as_fault() : (int64_t = 1) = fbt::handle_mm_fault:return / !(arg1 & 0x400) /;
	probe maj_fault() : (int64_t = 1) = fbt::handle_mm_fault:return / arg1 & 0x4 /;

	/* pgscan, pgsteal and pageoutrun. */
	probe scan(int zone, int order, unsigned long wanted, unsigned long scanned) :
	    (int64_t = scanned) = sdt:vmscan::mm_vmscan_lru_isolate;
	probe dfree(int node, unsigned long scanned, unsigned long freed) : (int64_t = freed) =
	    sdt:vmscan::mm_vmscan_lru_shrink_inactive;
	probe pgrrun() : (int64_t = 1) = sdt:vmscan::mm_vmscan_kswapd_wake;

	probe pgin() = refuse("io:::start with B_READ in args[0]->b_flags");
	probe pgout() = refuse("io:::start with B_WRITE in args[0]->b_flags");
	probe pgpgin() = refuse("args[0]->b_bcount of io:::start is the number of bytes");
	probe pgpgout() = refuse("args[0]->b_bcount of io:::start is the number of bytes");
	probe fspgin() = refuse("args[0]->b_bcount of io:::start is the number of bytes");
	probe fspgout() = refuse("args[0]->b_bcount of io:::start is the number of bytes");
	probe zfod() = refuse("the compiler puts the function that clears a new page into its caller");
	probe cow_fault() = refuse("the compiler puts the function that copies a page into its caller");
	probe prot_fault() = refuse("Linux signals it: proc:::signal-send with SIGSEGV");
	probe kernel_asflt() = refuse("Linux' kernel has no pages that are not there");
	probe swapin() = refuse("Linux swaps single pages, not processes");
	probe swapout() = refuse("Linux swaps single pages, not processes");
	probe pgswapin() = refuse("Linux swaps single pages, not processes");
	probe pgswapout() = refuse("Linux swaps single pages, not processes");
};
