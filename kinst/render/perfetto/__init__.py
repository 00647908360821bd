"""The output format for Perfetto's user interface (https://ui.perfetto.dev): a timeline in which
entries with their returns are slices, and other records are instants, by thread and by CPU."""

from kinst.render.perfetto.renderer import PerfettoRenderer

RENDERER = PerfettoRenderer
