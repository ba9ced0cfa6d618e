"""Tests of ``python -m aten_ext sweep``."""
