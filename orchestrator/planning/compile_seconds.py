"""How long kernel modules compiled, from `compile_s` of the committed datasets. Do not edit: it is written by
`python -m tools.compile_seconds --write`.

The median of seconds of wall time on hosts with 16 cores, and the number of source files, by kind of module.
"""

from __future__ import annotations

COMPILE_SECONDS = {
    "gen_batch_prefill_module(fa3)": (55.5, 10),  # 2 modules, 42.8 to 68.3 s
    "gen_cascade_module": (8.5, 2),  # 2 modules, 8.2 to 8.8 s
    "gen_fmha_v2_module": (25.2, 134),  # 1 modules, 25.2 to 25.2 s
    "gen_xqa_module": (12.6, 5),  # 8 modules, 12.1 to 12.9 s
}
