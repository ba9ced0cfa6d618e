"""``python -m aten_ext bench``: upstream and fused kernels timed against each other in one process.

One module per op, in ``ops``, declares cases; everything else times them. Start reading at
``command``, then ``harness``. Benchmarks for developers alone are in scripts/lib/developer_bench.
"""
