"""Files of other benchmarks, in their shape and out of it."""
