"""The format of dtrace(1): rows, aggregations, drawings, structures and stacks as text."""

from kinst.render.dtrace.renderer import DtraceText

RENDERER = DtraceText
