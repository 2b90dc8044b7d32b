"""Kernel modules: compiled once, found again in a cache or an archive."""
