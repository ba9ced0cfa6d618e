"""``python -m aten_ext doctor``: whether this installation is well, and what to do where it is not.

It also runs where the kernels, or torch itself, cannot be loaded: nothing here needs them at import.
"""
