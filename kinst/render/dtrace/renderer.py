"""The renderer for the text of dtrace(1)."""

from __future__ import annotations

from functools import partial

from kinst.consumer.decode import in_order, rows_at
from kinst.consumer.printf import RowTemplate
from kinst.consumer.rings import Bytes
from kinst.consumer.schema import Schema
from kinst.core.layout import RECORD_CPU, RECORD_PROBE
from kinst.dlang.typed import PrintaAction
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import (
    Arrived,
    Batch,
    Closing,
    Event,
    Fault,
    Lost,
    Message,
    OptionSet,
    Output,
    Printed,
    Reopen,
    Shell,
    TracingOver,
    Truncate,
)
from kinst.render import Destination
from kinst.render.dtrace import flow
from kinst.render.dtrace.aggregations import AggOptions, default_rows, formatted_rows
from kinst.render.dtrace.clauses import TraceStyle, compile_clause
from kinst.render.dtrace.output import TextOutput
from kinst.render.dtrace.symbols import SymbolText

HEADER = f"{'CPU':>3} {'ID':>6} {'FUNCTION:NAME':>32}\n"


def agg_options(options: Options, symbols: SymbolText) -> AggOptions:
    """Return the options that concern aggregations, from the options of a program.

    Args:
        symbols: formats recorded addresses.
    """
    return AggOptions(
        agghist=options.agghist,
        aggpack=options.aggpack,
        aggsortkey=options.aggsortkey,
        aggsortrev=options.aggsortrev,
        aggzoom=options.aggzoom,
        aggsortkeypos=options.aggsortkeypos,
        aggsortpos=options.aggsortpos,
        encoding=options.encoding,
        rawbytes=options.rawbytes,
        names=symbols,
    )


class DtraceText:
    """A renderer that writes dtrace(1)'s text: rows with CPU, probe id and function, and
    aggregations in dtrace(1)'s layout. With the option quiet, it writes only what the program
    prints."""

    def __init__(self, destination: Destination, schema: Schema) -> None:
        self._first = destination
        self._out = TextOutput(destination)
        self._schema = schema
        self._sizes = {layout.clause: layout.size for _, layout in schema.clauses()}
        self._options = schema.options
        self._headed = False
        self._prefixes: dict[int, str] = {}
        self._flow = flow.FlowIndent(flow.crossings_of(schema.program.clauses))
        self._clause = 0
        self._following: tuple[int, int] | None = None
        self._compile()

    def _compile(self) -> None:
        """Compile the templates of all clauses for the present options."""
        options, schema = self._options, self._schema
        symbols = SymbolText(schema.names, options.stackindent)
        style = TraceStyle(
            options.quiet, options.rawbytes, schema.symbolise, symbols, options.flowindent
        )
        self._parts: dict[int, tuple[RowTemplate | None, ...]] = {
            layout.clause: compile_clause(clause, layout, style, self._prefix)
            for clause, layout in schema.clauses()
        }
        self._aggs = agg_options(options, symbols)

    def show(self, event: Event) -> None:
        match event:
            case Batch():
                self._batch(event)
            case Printed():
                self._printed(event)
            case Arrived():
                self._head()
            case Lost() | Fault() | Message():
                self._first.say(event.text)
            case Output():
                self._first.console(event.data.decode("utf-8", "surrogateescape"))
            case Shell():
                self._first.shell(event.command, False)
            case Reopen():
                self._out.reopen(event.path)
            case Truncate():
                self._out.truncate()
            case OptionSet():
                self._options = self._options.with_option(event.name, event.value)
                self._compile()
            case TracingOver():
                if event.reason == "interrupted":
                    self._first.write("\n")  # end the line on which the terminal shows ^C
            case Closing():
                self._first.write("\n")  # dtrace(1)'s empty line above the last aggregations

    def close(self) -> None:
        self._out.close()

    # --- Rows ---

    def _head(self) -> None:
        flowing = self._options.flowindent
        if not self._headed and (flowing or not self._options.quiet):
            self._out.write(flow.HEADER if flowing else HEADER)
            self._headed = True

    def _prefix(self, probe_and_cpu: int) -> str:
        if self._options.flowindent:
            identifier, cpu = probe_and_cpu & 0xFFFFFFFF, probe_and_cpu >> 32
            probe = self._schema.probes[identifier]
            return self._flow.prefix(cpu, probe, self._clause, self._following)
        prefix = self._prefixes.get(probe_and_cpu)
        if prefix is None:
            identifier, cpu = probe_and_cpu & 0xFFFFFFFF, probe_and_cpu >> 32
            known = self._schema.probes.get(identifier)
            name = f"{known.name.function}:{known.name.name}" if known else ":"
            prefix = self._prefixes[probe_and_cpu] = f"{cpu:3d} {identifier:6d} {name:>32} "
        return prefix

    def _batch(self, batch: Batch) -> None:
        if self._options.flowindent:
            self._flowing(batch)
            return
        if text := "".join(in_order(batch, self._sizes, partial(self._rendered, batch.part))):
            self._out.write(text)

    def _rendered(self, part: int, clause: int, rows: Bytes) -> list[str]:
        template = self._parts[clause][part]
        return [""] * len(rows) if template is None else template.render(rows)

    def _flowing(self, batch: Batch) -> None:
        """Write records one by one, for flowindent: the indentation of a row depends on the rows
        before."""
        after = None if batch.following is None else batch.following.tolist()
        for at, clause in enumerate(batch.clauses.tolist()):
            self._clause = clause
            self._following = None
            if after is not None and after[at][0] >= 0:
                self._following = after[at][0], after[at][1]
            row = rows_at(batch.data, batch.offsets[at : at + 1], self._sizes[clause])
            self._out.write(self._rendered(batch.part, clause, row)[0])

    # --- Aggregations ---

    def _printed(self, event: Printed) -> None:
        tables = [self._schema.tables[index] for index in event.tables]
        if event.action < 0:
            rows = default_rows(tables, self._aggs)
        else:
            action = self._schema.program.clauses[event.clause].actions[event.action]
            assert isinstance(action, PrintaAction)
            if action.format is None:
                self._out.write("\n")
                rows = default_rows(tables, self._aggs)
            else:
                rows = formatted_rows(tables, action.format, self._aggs, self._schema.symbolise)
        if rows:
            self._out.write("".join(rows))


assert RECORD_CPU == RECORD_PROBE + 4  # both are read as one word
