"""Saved runs: written, read back, and compared."""
