"""Workloads and traces of flashinfer-trace, the JSON schema of flashinfer-ai/flashinfer-bench.

Read from its `flashinfer_bench/data/workload.py` and `trace.py`, and from the definitions and workloads under `flashinfer_trace/`,
in 2026. It keeps real lengths in safetensors files beside the workloads.
"""
