"""The command line: ``python -m aten_ext``."""
