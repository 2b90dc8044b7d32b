"""Does a backend keep the contract of `kernels/adapter.py`? Every check for any backend, in the project or outside it."""
