"""Backends that run in the process of another Python environment, with other versions of their libraries."""
