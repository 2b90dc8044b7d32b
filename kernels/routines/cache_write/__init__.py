"""Writes of new keys and values into a paged cache: what an engine does in every layer before it attends."""
