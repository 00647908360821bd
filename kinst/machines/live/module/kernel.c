// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Functions and locks of the kernel that modules cannot link to, looked up by
 * name.
 */
#include <linux/kallsyms.h>
#include <linux/kprobes.h>

#include "parts.h"

struct kernel kernel;

static const struct {
	void *where;
	const char *name, *later;
	bool optional;
} wanted[] = {
	{ &kernel.text_poke, "text_poke" },
	{ &kernel.poke_stopped, "text_poke_kgdb", NULL, true },
	{ &kernel.queue, "text_poke_queue", "smp_text_poke_batch_add" },
	{ &kernel.finish, "text_poke_finish", "smp_text_poke_batch_finish" },
	{ &kernel.sync, "text_poke_sync", "smp_text_poke_sync_each_cpu" },
	{ &kernel.tell_perf, "perf_event_text_poke", NULL, true },
	{ &kernel.text_mutex, "text_mutex" },
	{ &kernel.ftrace_lock, "ftrace_lock", NULL, true },
	{ &kernel.allocate, "__vmalloc_node_range",
	  "__vmalloc_node_range_noprof" },
	{ &kernel.reserve, "pcpu_alloc", "pcpu_alloc_noprof", true },
	{ &kernel.everywhere, "schedule_on_each_cpu" },
	{ &kernel.stop, "stop_machine_cpuslocked", NULL, true },
	{ &kernel.int3, "exc_int3", NULL, true },
	{ &kernel.own_int3, "poke_int3_handler", "smp_text_poke_int3_handler",
	  true },
	{ &kernel.set_ro, "set_memory_ro" },
	{ &kernel.set_rw, "set_memory_rw" },
	{ &kernel.set_x, "set_memory_x" },
	{ &kernel.set_nx, "set_memory_nx" },
	{ &kernel.forbidden, "within_kprobe_blacklist" },
	{ &kernel.jump_labels, "jump_label_text_reserved", NULL, true },
	{ &kernel.static_calls, "static_call_text_reserved", NULL, true },
	{ &kernel.fixup, "search_exception_tables", NULL, true },
	{ &kernel.first_jump, "__start___jump_table", NULL, true },
	{ &kernel.end_jump, "__stop___jump_table", NULL, true },
	{ &kernel.first_call, "__start_static_call_sites", NULL, true },
	{ &kernel.end_call, "__stop_static_call_sites", NULL, true },
	{ &kernel.jump_label_lock, "jump_label_lock", NULL, true },
	{ &kernel.jump_label_unlock, "jump_label_unlock", NULL, true },
	{ &kernel.is_text, "core_kernel_text" },
	{ &kernel.module_of, "__module_text_address" },
	{ &kernel.size_of, "kallsyms_lookup_size_offset" },
#ifdef NEW_DECODER
	{ &kernel.decode, "insn_decode" },
#else
	{ &kernel.begin, "insn_init" },
	{ &kernel.decode, "insn_get_length" },
#endif
	{ &kernel.recover, "recover_probed_instruction", NULL, true },
	{ &kernel.die_chain, "die_chain" },
	{ &kernel.ftrace_ops, "ftrace_ops_list", NULL, true },
	{ &kernel.ftrace_end, "ftrace_list_end", NULL, true },
	{ &kernel.first_record, "ftrace_rec_iter_start", NULL, true },
	{ &kernel.next_record, "ftrace_rec_iter_next", NULL, true },
	{ &kernel.record, "ftrace_rec_iter_record", NULL, true },
};

int look_up(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int error = register_kprobe(&probe);
	int i;

	if (error)
		return error;
	kernel.lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	for (i = 0; i < ARRAY_SIZE(wanted); i++) {
		unsigned long found = kernel.lookup(wanted[i].name);

		if (!found && wanted[i].later)
			found = kernel.lookup(wanted[i].later);
		if (!found && !wanted[i].optional) {
			pr_err("this kernel has no %s\n", wanted[i].name);
			return -EOPNOTSUPP;
		}
		*(unsigned long *)wanted[i].where = found;
	}
	return 0;
}

/*
 * Returns the length of the instruction at the start of these MAX_INSN_SIZE
 * bytes, 0 if there is none.
 */
int decode(struct insn *insn, const u8 *code)
{
#ifdef NEW_DECODER
	return kernel.decode(insn, code, MAX_INSN_SIZE, INSN_MODE_64) < 0 ?
		       0 : insn->length;
#else
	kernel.begin(insn, code, MAX_INSN_SIZE, 1);
	kernel.decode(insn);
	return insn->length;
#endif
}
