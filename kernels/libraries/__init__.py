"""What the adapters of one kernel library share: its calls in each release, its wrappers, its compiled modules."""
