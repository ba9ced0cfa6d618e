"""Recurrent layers on the CPU."""
