"""Checks arguments and files before Hydra reads them, and rewrites its errors so that they say what to type."""
