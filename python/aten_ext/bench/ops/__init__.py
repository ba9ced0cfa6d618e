"""The benchmarks: one module an op, found by its file name (see ``aten_ext.bench.registry``)."""
