"""``python -m aten_ext sweep``: random calls, upstream and fused kernels in turns, and a verdict.

The tables of ``bench`` hold the shapes that kernels were written for. A sweep draws shapes, layouts and
dtypes from a seed, so that a rule is judged on calls that nobody chose.
"""
