"""Rows, and the datasets that they are stored in: a folder or an object store."""
