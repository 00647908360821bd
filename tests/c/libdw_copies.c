/* Every inlined copy that libdw finds in a file, one a line:
 *     entry (hexadecimal, or -)  name  ranges low-high,low-high... (or -)  call file:line  decl file:line
 * The entry by the rule of perf and SystemTap: DW_AT_entry_pc, else DW_AT_low_pc, else the start
 * of the first range.  Relocatable files go through libdwfl, which applies their relocations.
 */
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void copy(Dwarf_Die *die)
{
	Dwarf_Addr base = 0, low = 0, high = 0, first = 0, pc;
	const char *name = dwarf_diename(die);
	ptrdiff_t at = 0;
	int any = 0, decl_line = 0;
	const char *decl = dwarf_decl_file(die), *called = "";
	Dwarf_Word number = 0, line = 0;
	Dwarf_Attribute attribute;
	Dwarf_Files *files;
	Dwarf_Die unit;

	dwarf_decl_line(die, &decl_line);
	if (dwarf_formudata(dwarf_attr(die, DW_AT_call_file, &attribute), &number) == 0
	    && dwarf_diecu(die, &unit, NULL, NULL) && dwarf_getsrcfiles(&unit, &files, NULL) == 0)
		called = dwarf_filesrc(files, number, NULL, NULL);
	dwarf_formudata(dwarf_attr(die, DW_AT_call_line, &attribute), &line);
	if (dwarf_entrypc(die, &pc) == 0 || dwarf_lowpc(die, &pc) == 0)
		printf("%" PRIx64, pc);
	else if (dwarf_ranges(die, 0, &base, &first, &high) > 0)
		printf("%" PRIx64, first);
	else
		printf("-");
	printf(" %s ", name ? name : "?");
	while ((at = dwarf_ranges(die, at, &base, &low, &high)) > 0)
		if (low < high) {
			printf("%s%" PRIx64 "-%" PRIx64, any ? "," : "", low, high);
			any = 1;
		}
	printf("%s %s:%" PRIu64 " %s:%d\n", any ? "" : "-", called, line, decl ? decl : "", decl_line);
}

static void walk(Dwarf_Die *die)
{
	Dwarf_Die child, next;

	for (;;) {
		if (dwarf_tag(die) == DW_TAG_inlined_subroutine)
			copy(die);
		if (dwarf_child(die, &child) == 0)
			walk(&child);
		if (dwarf_siblingof(die, &next) != 0)
			return;
		*die = next;
	}
}

static int find_nothing(Dwfl_Module *m, void **u, const char *n, Dwarf_Addr b, const char *f,
			const char *d, GElf_Word c, char **r)
{
	(void)m, (void)u, (void)n, (void)b, (void)f, (void)d, (void)c, (void)r;
	return -1;
}

int main(int argc, char **argv)
{
	static const Dwfl_Callbacks callbacks = {
		.find_debuginfo = find_nothing,
		.section_address = dwfl_offline_section_address,
	};
	Dwfl *dwfl = dwfl_begin(&callbacks);
	Dwfl_Module *module = argc > 1 ? dwfl_report_offline(dwfl, "", argv[1], -1) : NULL;
	Dwarf_Addr bias;
	Dwarf *dwarf = module ? dwfl_module_getdwarf(module, &bias) : NULL;
	Dwarf_Off at = 0, next;
	size_t header;
	Dwarf_Half version;

	if (!dwarf) {
		fprintf(stderr, "libdw: %s\n", dwfl_errmsg(-1));
		return 1;
	}
	while (dwarf_next_unit(dwarf, at, &next, &header, &version, NULL, NULL, NULL, NULL, NULL) == 0) {
		Dwarf_Die unit;
		if (dwarf_offdie(dwarf, at + header, &unit))
			walk(&unit);
		at = next;
	}
	return 0;
}
