"""Pictures and texts for people, made from the results of a trace: annotated functions, coverage,
flame graphs, histograms, call trees, differences between two traces.

The modules only turn values into text: they do not trace, print or open files.
"""
