"""The Parquet tables of attention times of ai-dynamo/aiconfigurator: read as rows, and written from rows.

Read from its source of August 2026: `collector/vllm/collect_attn.py`, `collector/sglang/collect_attn.py`, `collect_mla.py`,
`collector/trtllm/collect_attn.py`, and `perf_database/attention.rs`, which finds a decode by `isl + step`, the KV tokens.
"""
