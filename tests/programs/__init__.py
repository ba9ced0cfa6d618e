"""The rest of PyTorch around the overrides: cases to run in every kind of program, and what must hold."""
