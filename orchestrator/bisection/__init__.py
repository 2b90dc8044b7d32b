"""Finds the releases of a library between which something changed. `orchestrator/commands/bisect.py` measures."""
