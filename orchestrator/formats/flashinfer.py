"""FlashInfer's benchmark (benchmarks/routines/attention.py, flashinfer_benchmark_utils.py, 2025 to 2026) in our terms."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from typing import Any, NoReturn

from kernels.problem import Problem, batch_spec, default_output
from orchestrator.config.parts import OLD_NAMES
from orchestrator.errors import NotTaken
from orchestrator.remainder import Remainder
from orchestrator.untrusted.files import read_text

ROUTINES = {
    "BatchDecodeWithPagedKVCacheWrapper": "paged_decode",
    "BatchPrefillWithPagedKVCacheWrapper": "paged_prefill",
    "BatchPrefillWithRaggedKVCacheWrapper": "ragged_prefill",
    "BatchMLAPagedAttentionWrapper": "mla",
}
OF_TORCH = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPES = OF_TORCH | {name: name for name in ("fp8_e4m3", "fp8_e5m2", "nvfp4")}
# As torch prints them, which is what result files contain.
TORCH_DTYPES = {f"torch.{theirs}": ours for theirs, ours in OF_TORCH.items()} | {
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
    "torch.uint8": "nvfp4",
}
RENAMED = {**OLD_NAMES, "prims_ts": "prims-ts"}  # FlashInfer's old names of its backends
# `trtllm-native` there is a different function in each routine; here each function has its own name, or none.
BACKENDS = {
    ("paged_prefill", "trtllm-native"): "trtllm-context",
    ("ragged_prefill", "trtllm-native"): "trtllm-native (FlashInfer's benchmark)",  # trtllm_ragged_attention_deepseek
}
MLA_NOPE, MLA_VALUES = 128, 128  # head dims before absorption, from which the softmax scale is computed
Rule = dict[str, Any]
MAX_BYTES, MAX_LINE = 16 * 10**6, 10_000

# How to measure, check, print and name: timing=, check= and the row replace these. `random_seed` also draws lengths.
MEASURING_FLAGS = ("no_cuda_graph", "use_cupti", "use_cuda_events", "refcheck", "allow_output_mismatch", "generate_repro_command")
MEASURING_OPTIONS = ("case_tag", "repro_command", "output_path", "autotune_cache")
IGNORED = (*MEASURING_FLAGS, *MEASURING_OPTIONS, "num_iters", "dry_run_iters", "verbose", "random_seed")
KERNEL_OPTIONS = ("autotune", "mla_is_var_seq", "mla_cute_dsl_impl")

# The columns of its result files that attention routines fill, in their order.
LENGTH_COLUMNS = ("s_qo", "s_kv", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe")
HEAD_COLUMNS = ("num_qo_heads", "num_kv_heads", "page_size")
COLUMNS = (
    *("routine", "median_time", "std_time", "tflops", "tb_per_sec", "backend", "resolved_backend"),
    *LENGTH_COLUMNS,
    *("causal", "q_dtype", "kv_dtype", "avg_actual_seq_len", "random_actual_seq_len", "batch_size", "out_dtype"),
    *HEAD_COLUMNS,
    *("enable_pdl", "refcheck", "no_cuda_graph", "use_cupti", "allow_output_mismatch", "random_seed"),
    *("case_tag", "generate_repro_command", "repro_command"),
)


@dataclass(frozen=True)
class BenchmarkCase:
    """One line of a test list or of a result file. Fields are named after its flags; dtypes have our names."""

    routine: str
    batch_size: int
    s_kv: int
    num_qo_heads: int
    num_kv_heads: int | None = None
    s_qo: int = 1
    page_size: int = 0
    head_dim_qk: int | None = None
    head_dim_vo: int | None = None
    head_dim_ckv: int | None = None
    head_dim_kpe: int | None = None
    q_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    out_dtype: str | None = None
    causal: bool = False
    spec_dec_mask: str = "causal"
    random_actual_seq_len: bool = False
    random_seed: int = 42
    enable_pdl: bool | None = None
    qk_nope_head_dim: int | None = None
    q_lengths: tuple[int, ...] | None = None
    kv_lengths: tuple[int, ...] | None = None
    redraw: bool = True  # whether to draw the random lengths of a prefill as the benchmark does


def our_dtype(word: str) -> str:
    """Our name of a dtype. Raises ValueError for one that the benchmark does not have."""
    known = DTYPES | TORCH_DTYPES
    if word not in known:
        raise ValueError(f"{word!r} is no dtype of the benchmark; allowed: {', '.join(DTYPES)}")
    return known[word]


def our_backend(routine: str, word: str) -> str:
    """Our name of a backend in one of our routines; a backend that we do not have keeps its name."""
    known_as = RENAMED.get(word, word)
    return BACKENDS.get((routine, known_as), known_as)


def their_backend(routine: str, name: str) -> str:
    back = {(of, ours): theirs for (of, theirs), ours in BACKENDS.items()}
    return back.get((routine, name), name)


def problem_keys(case: BenchmarkCase) -> dict[str, object]:
    """A case as keys of a problem. Raises ValueError if a key is missing."""
    routine = ROUTINES[case.routine]
    out = case.out_dtype or case.q_dtype  # the benchmark's default, also for 8-bit queries
    keys: dict[str, object] = {
        "routine": routine,
        "num_qo_heads": case.num_qo_heads,
        **_heads(case, routine),
        **_lengths(case, routine),
        "mask": _mask(case, routine),
        "sinks": False,
        "q_dtype": case.q_dtype,
        "kv_dtype": case.kv_dtype,
        "out_dtype": None if out == default_output(case.q_dtype) else out,
        "enable_pdl": case.enable_pdl,
    }
    if routine == "ragged_prefill":
        return keys
    if case.page_size < 1:
        raise ValueError(f"page_size={case.page_size}: a routine over pages needs one, such as --page_size 16")
    return {**keys, "page_size": case.page_size}


def _lengths(case: BenchmarkCase, routine: str) -> dict[str, object]:
    if (case.q_lengths is None) != (case.kv_lengths is None):
        raise ValueError("--mla-q-lengths and --mla-kv-lengths: allowed: both or neither")
    if case.q_lengths is not None and case.kv_lengths is not None:
        counts = len(case.q_lengths), len(case.kv_lengths)
        if {*counts} != {case.batch_size}:
            raise ValueError(f"batch_size={case.batch_size}: there are {counts[0]} query and {counts[1]} KV lengths")
        return dict(batch_spec.keys_of(batch_spec.name(zip(case.q_lengths, case.kv_lengths, strict=True))))
    keys: dict[str, object] = {"batch_size": case.batch_size, "s_qo": case.s_qo, "s_kv": case.s_kv}
    if not case.random_actual_seq_len:
        return keys
    is_prefill = routine in ("paged_prefill", "ragged_prefill")
    if is_prefill and case.redraw:
        return dict(batch_spec.keys_of(batch_spec.name(drawn(case))))
    return keys | {"seq_lens": "random"} | ({"min_s_qo": 1} if is_prefill else {})


def drawn(case: BenchmarkCase) -> list[tuple[int, int]]:
    """The query and KV lengths that the benchmark's prefill tests draw, for each request.

    They draw with torch on the CPU from a seed: raw 32-bit outputs of a Mersenne Twister, modulo the length, plus one. NumPy's
    legacy generator gives the same numbers. (Decode tests draw on the GPU, with another generator.)
    """
    import numpy as np

    if not 1 <= case.batch_size <= batch_spec.MAX_REQUESTS or case.s_qo < 1 or case.s_kv < 1:
        allowed = f"1 to {batch_spec.MAX_REQUESTS:,} requests of random lengths from 1 on"
        raise ValueError(f"batch_size={case.batch_size}: allowed: {allowed}")
    raw = np.frombuffer(np.random.RandomState(case.random_seed).bytes(8 * case.batch_size), "<u4").astype(np.int64)
    q = (raw[: case.batch_size] % case.s_qo + 1).tolist()
    if case.s_qo == case.s_kv:
        return list(zip(q, q, strict=True))
    kv = (raw[case.batch_size :] % case.s_kv + 1).tolist()
    return [(a, max(a, b)) for a, b in zip(q, kv, strict=True)]


def _heads(case: BenchmarkCase, routine: str) -> dict[str, object]:
    if routine == "mla":
        if case.head_dim_ckv is None or case.head_dim_kpe is None:
            raise ValueError(f"{case.routine} needs --head_dim_ckv and --head_dim_kpe")
        return {
            "num_kv_heads": case.num_qo_heads,  # before absorption; the flag says 1 or this number, both mean the same
            "head_dim_ckv": case.head_dim_ckv,
            "head_dim_kpe": case.head_dim_kpe,
            "head_dim_qk": (case.qk_nope_head_dim or MLA_NOPE) + case.head_dim_kpe,
            "head_dim_vo": MLA_VALUES,
        }
    if case.head_dim_qk is None or case.num_kv_heads is None:
        raise ValueError(f"{case.routine} needs --num_kv_heads and --head_dim_qk")
    dims = {"head_dim_qk": case.head_dim_qk, "head_dim_vo": case.head_dim_vo or case.head_dim_qk}
    return {"num_kv_heads": case.num_kv_heads, **dims}


def _mask(case: BenchmarkCase, routine: str) -> str:
    """With one query token the causal and the full mask are the same; we call it causal."""
    if routine == "paged_decode":
        return case.spec_dec_mask if case.s_qo > 1 else "causal"
    alone = routine == "mla" and case.s_qo == 1 and case.q_lengths is None
    return "causal" if case.causal or alone else "full"


def uncounted_flops(problem: Problem) -> int:
    """FLOPs that FlashInfer's formula does not count.

    For q causal queries over k keys it counts q(2k - q)/2 pairs, which is q/2 too few. Its formulas for MLA and for the full
    mask are exact. (attention_tflops_per_sec_with_actual_seq_lens in flashinfer/testing/utils.py)
    """
    if problem.latent or problem.mask != "causal" or (problem.routine == "paged_decode" and problem.s_qo == 1):
        return 0
    return problem.num_qo_heads * (problem.head_dim_qk + problem.head_dim_vo) * problem.num_q_tokens


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_testlist(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule for each line of attention (backends as `known`, if given), and what is left out. Raises UserError if none is left."""
    rest, given, rules = Remainder(path), set[str](), list[Rule]()
    lines = ((number, line.strip()) for number, line in enumerate(read_text(path, "import", MAX_BYTES).split("\n"), 1))
    cases = ((number, line) for number, line in lines if line and not line.startswith("#"))
    for number, (args, rule) in rest.each(cases, _case):
        if backends := _backends(rest, number, str(rule["routine"]), args.backends, known):
            rules.append({**rule, "backend": backends})
            given.update(name for name in IGNORED if name in args)
            for option in [one for one in KERNEL_OPTIONS if one in args]:
                rest.add(number, "with options that kernels choose here by themselves", f"--{option}")
    if not rules and not rest.found:
        rest.add(1, "no case in it; allowed: lines such as --routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 ...")
    left = rest.close(len(rules), f"allowed: --routine {', '.join(ROUTINES)}; +sweep.backend=[fa2,cudnn] names backends for all")
    how = f"; {', '.join(f'--{flag}' for flag in sorted(given))} give way to timing= and check=" if given else ""
    return rules, f"the {len(rules)} cases of {path}{how}{left}"


def _case(text: str) -> tuple[argparse.Namespace, Rule]:
    """The arguments of a line (maybe a pasted command) and the keys of its problem. Raises ValueError for anything else."""
    if len(text) > MAX_LINE:
        raise ValueError(f"{len(text):,} characters in a line; allowed: up to {MAX_LINE:,}")
    words = shlex.split(text)
    before = next((at for at, word in enumerate(words) if word.split("=")[0] in ("--routine", "-R")), 0)
    program = max((at for at, word in enumerate(words[:before]) if word.endswith(("flashinfer_benchmark", ".py"))), default=-1)
    parts = list(dropwhile(lambda word: not word.startswith("-"), words[program + 1 :]))
    first = _Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--routine", "-R")
    if (routine := first.parse_known_args(parts)[0].routine) not in ROUTINES:
        raise NotTaken("of other routines", routine or "no --routine")
    args, unknown_words = _parser().parse_known_args(parts)
    if unknown_words:
        raise ValueError(f"{unknown_words[0]!r} has no counterpart here")
    fields = {name: value for name, value in vars(args).items() if name in BenchmarkCase.__dataclass_fields__}
    keys = problem_keys(BenchmarkCase(**fields))
    Problem.model_validate(keys)
    return args, keys


def _dtype(word: str) -> str:
    try:
        return our_dtype(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _comma_separated(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.split(","))


# The flags of an attention case, and how the benchmark's own parser takes them.
FLAGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--routine", "-R"): {},
    ("--backends",): {"nargs": "+", "default": ["fa2"]},
    **{(f"--{name}",): {"type": int, "required": True} for name in ("batch_size", "s_kv", "num_qo_heads")},
    **{(f"--{name}",): {"type": int} for name in ("num_kv_heads", "s_qo", "page_size", "random_seed")},
    **{(f"--head_dim_{name}",): {"type": int} for name in ("qk", "vo", "ckv", "kpe")},
    ("--mla-qk-nope-head-dim", "--qk_nope_head_dim"): {"type": int, "dest": "qk_nope_head_dim"},
    **{(f"--mla-{name}-lengths",): {"type": _comma_separated, "dest": f"{name}_lengths"} for name in ("q", "kv")},
    **{(f"--{name}_dtype",): {"type": _dtype} for name in ("q", "kv", "out")},
    ("--spec_dec_mask",): {"choices": ["causal", "full"]},
    **{(f"--{name}",): {"action": "store_true"} for name in (*MEASURING_FLAGS, "causal", "random_actual_seq_len")},
    **{(f"--{name}",): {"action": "store_true"} for name in ("enable_pdl", "autotune")},
    **{(f"--{name}",): {} for name in (*MEASURING_OPTIONS, "mla_is_var_seq", "mla_cute_dsl_impl")},
    ("--num_iters", "-n"): {},
    ("--dry_run_iters", "-d"): {},
    ("--verbose", "-v"): {"action": "count"},
}


@cache
def _parser() -> _Parser:
    """Abbreviations are taken, and what is not given is absent."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    for names, how in FLAGS.items():
        parser.add_argument(*names, **how)
    return parser


def _backends(
    rest: Remainder, number: int, routine: str, given: list[str], known: Mapping[str, frozenset[str]] | None
) -> list[str]:
    names = [our_backend(routine, name) for name in given]
    for name in names:
        if known is not None and name not in known[routine]:
            rest.add(number, f"with backends that {routine} has not here", name)
    return [name for name in names if known is None or name in known[routine]]
