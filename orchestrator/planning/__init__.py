"""From a sweep to decisions, before anything runs. Pure: no CUDA, no torch, no kernel library."""
