"""``python -m aten_ext tune``: measures this GPU, and writes the tables that the rules read."""
