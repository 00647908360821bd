"""Write examples/README.md: the scripts of examples/, grouped by theme, each with the question that
it answers.

    example_index.py           write the file
    example_index.py --check   exit with status 1 if the file is outdated

The question and the command are in the first lines of each script; the themes are in this module.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

THEMES = {
    "One instruction, an inline function, a local variable": """
        heat_map first_instruction registers local_variables inline_fdget_pos
        inline_fdput_pos_returns where_functions_return""",
    "Reading and writing": """
        reads_by_process read_sizes read_bytes read_latency top_readers files_read file_systems
        reads_after_opens returned_values gaps_between_reads written_text pipe_bytes pipe_wait
        seeks stacks_of_writes disk_latency disk_sizes""",
    "Files and directories": """
        opensnoop failed_opens failing_opens_in_detail calls_and_their_results open_to_close
        closed_files directories_of_opens names_of_opens duplicated_files stats truncations
        unlinked_files path_of_an_unlink renames new_directories permission_checks
        operations_on_files""",
    "System calls": """
        system_calls system_calls_by_process system_call_time system_call_errors
        syscall_arguments following_children users getppid_rate most_frequent_first
        sorted_by_name""",
    "Processes": """
        forks execs exits lifetimes ancestors task_translator signals signals_sent new_programs
        kill_calls current_task
        copy_on_write""",
    "Scheduling and time": """
        context_switches time_on_cpu next_programs off_cpu wakeups cpu_time sleepers migrations
        lock_waits
        work_items profile_programs profile_cpus timer_interrupts interrupted_programs
        soft_interrupts variable_of_the_kernel time_of_day""",
    "Memory": """
        page_faults page_faults_writing page_fault_order kmalloc_sizes kmalloc_callers caches
        depth_of_stacks mappings unmappings""",
    "Network": """
        packets packet_sizes udp_sizes udp_received binds short_stacks tcp_connections segments
        ip_traffic""",
    "The kernel's own data": """
        release sizes_of_structures enumerations shown_structure dump_of_a_task""",
    "How to say it in D": """
        hello default_output one_program target_only big_reads branches by_size_class
        preprocessed first_ten first_buffer last_ones every_tenth_of_a_second per_interval
        table_with_header statistics normalized linear loglinear""",
}

HEAD = """\
# Examples

{count} D scripts, each with its question and a command that answers it in its first lines; run one
from the top folder of the repository. Where the command ends with a word, that is the name of the
program that is looked at (`$$1` in the script). Registers such as `regs[R_RDX]` are amd64's: on
arm64 and riscv64 (`--vm=arm64`, `--vm=riscv64`) they have other names.

```sh
{command}
```

(Written by `tools/example_index.py` from the scripts' first lines.)
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script of examples/.

    Attributes:
        name: name of the file, without .d.
        question: the question that the script answers.
        command: command that runs the script, from its first lines.
    """

    name: str
    question: str
    command: str


def read_script(path: Path) -> Script:
    """Return a script with what its first lines say. Raises ValueError if they do not have the form
    of a question and a command."""
    head = re.match(r"/\*\n \* (.+)\n \* Run: (kinst .+)\n \*/\n", path.read_text())
    if head is None or f"-s examples/{path.name}" not in head[2]:
        raise ValueError(f"{path}: the first lines are not a question and a command")
    return Script(path.stem, head[1], head[2])


def scripts() -> dict[str, Script]:
    """Return all scripts of examples/ by name."""
    return {path.stem: read_script(path) for path in sorted(EXAMPLES.glob("*.d"))}


def index() -> str:
    """Return the text of examples/README.md. Raises ValueError if a script is in no theme or in
    two."""
    all_scripts = scripts()
    listed = [name for names in THEMES.values() for name in names.split()]
    wrong = {
        name
        for name in {*all_scripts, *listed}
        if listed.count(name) != 1 or name not in all_scripts
    }
    if wrong:
        raise ValueError(f"not once in THEMES, or no script: {', '.join(sorted(wrong))}")
    parts = [HEAD.format(count=len(all_scripts), command=all_scripts["heat_map"].command)]
    for theme, names in THEMES.items():
        rows = []
        for name in names.split():
            question, _, shows = all_scripts[name].question.partition("  (")
            shows = shows.removesuffix(")")
            rows.append(f"| {question} | [{name}]({name}.d) | {shows} |")
        parts.append(
            "\n".join([f"## {theme}\n", "| question | script | |", "|---|---|---|", *rows])
        )
    return "\n".join([parts[0], "\n\n".join(parts[1:]), ""])


def main() -> int:
    page = EXAMPLES / "README.md"
    text = index()
    if "--check" in sys.argv[1:]:
        return int(not page.exists() or page.read_text() != text)
    page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
