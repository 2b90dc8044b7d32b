"""Does a backend keep the contract of `kernels/adapter.py`? Every check for any backend, in the project or outside it.

suite      which checks there are for a backend on a device, pairs of problems on both sides of its rule, and each verdict
problems   the problems they use, found by asking the backend's own rule
checks     one function for each check that runs the backend
on_cuda    those that need a CUDA device
purity     what planning imports because of a backend, found in a process of its own
isolation  a process that runs checks, so that a crash is a verdict
"""
