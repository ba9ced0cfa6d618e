"""The overrides, a folder a family as in aten_ext/ops."""
