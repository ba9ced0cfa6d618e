"""``python -m aten_ext bench``."""
