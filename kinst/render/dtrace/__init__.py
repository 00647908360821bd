"""The output format of dtrace(1): records, aggregations, distributions, structures and stacks as
text."""

from kinst.render.dtrace.renderer import DtraceText

RENDERER = DtraceText
