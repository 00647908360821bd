"""A timeline for Perfetto's user interface (https://ui.perfetto.dev): entries with their returns as
slices, other records as instants, by thread and by CPU.
"""

from kinst.render.perfetto.renderer import PerfettoRenderer

RENDERER = PerfettoRenderer
