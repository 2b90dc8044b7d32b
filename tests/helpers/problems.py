"""The keys of a small problem, for a CPU."""

from __future__ import annotations

SMALL = {"batch_size": 2, "s_qo": 3, "s_kv": 100, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
HEADS = {key: value for key, value in SMALL.items() if key not in ("batch_size", "s_qo", "s_kv")}
