"""Inference engines, in whose running steps attention is timed (`timing.context=engine`)."""
