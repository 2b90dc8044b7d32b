"""How long a call takes: series of samples, timers, what surrounds a sample, and what the device says meanwhile."""
