"""Reads the test lists of FlashInfer's `flashinfer_benchmark.py`: one command line a line, each a case over its backends."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.errors import unknown
from orchestrator.formats.complaints import Complaints
from orchestrator.formats.flashinfer import ROUTINES, SEED, Case, our_backend, our_dtype, problem_keys

Rule = dict[str, Any]

NUMBERS = (
    *("batch_size", "s_kv", "num_qo_heads", "num_kv_heads", "s_qo", "page_size"),
    *("head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe"),
)
REQUIRED = frozenset({"batch_size", "s_kv", "num_qo_heads"})
# How to measure, check, print and name: here timing=, check= and the row say that. `random_seed` also draws lengths.
HOW = ("no_cuda_graph", "use_cupti", "use_cuda_events", "refcheck", "allow_output_mismatch", "generate_repro_command")
HOW_VALUES = ("num_iters", "dry_run_iters", "case_tag", "repro_command", "output_path")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule of a sweep for each line, and words on what of the file is said elsewhere here.

    `known` has the backends of each routine; without it the file's are not asked. Raises UserError that names every line and
    word that has no counterpart.
    """
    complaints, given = Complaints(path), set[str]()
    rules = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if (text := line.strip()) and not text.startswith("#"):
            rules.append(_rule(complaints, number, text, known, given))
    if not rules:
        complaints.add(1, "no case in it; allowed: lines such as --routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 ...")
    complaints.settle("delete or mend these lines (a # in front will do)")
    how = f"; {', '.join(sorted(given))} give way to timing= and check=" if given else ""
    return [rule for rule in rules if rule], f"the {len(rules)} cases of {path}{how}"


def _rule(
    complaints: Complaints, number: int, text: str, known: Mapping[str, frozenset[str]] | None, given: set[str]
) -> Rule | None:
    words = complaints.hear(number, lambda: shlex.split(text))
    if words is None or not _is_attention(complaints, number, words):
        return None
    parsed = complaints.hear(number, lambda: _parser().parse_known_args(words))
    if parsed is None:
        return None
    args, strange = parsed
    for word in strange:
        complaints.add(number, f"{word!r} has no counterpart here")
    keys = complaints.hear(number, lambda: problem_keys(_case(args)))
    if keys is None or complaints.problem(number, keys) is None:
        return None
    given.update(f"--{flag}" for flag in (*HOW, *HOW_VALUES, "verbose", "random_seed") if getattr(args, flag))
    routine = str(keys["routine"])
    return {
        **keys,
        "backend": args.backends if known is None else _backends(complaints, number, routine, args.backends, known[routine]),
    }


def _is_attention(complaints: Complaints, number: int, words: list[str]) -> bool:
    first = _Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--routine", "-R")
    found = complaints.hear(number, lambda: first.parse_known_args(words)[0])
    if found is None:
        return False
    if found.routine not in ROUTINES:
        given = "no --routine" if found.routine is None else f"--routine {found.routine!r} is no routine of this project"
        complaints.add(number, f"{given}; allowed: {', '.join(ROUTINES)}")
    return found.routine in ROUTINES


def _parser() -> _Parser:
    """The flags of an attention case as the benchmark has them, abbreviations included."""
    parser = _Parser(add_help=False)
    parser.add_argument("--routine", "-R")
    parser.add_argument("--backends", nargs="+", default=["fa2"])
    for flag in NUMBERS:
        parser.add_argument(f"--{flag}", type=int, required=flag in REQUIRED, default=argparse.SUPPRESS)
    for flag in ("q_dtype", "kv_dtype", "out_dtype"):
        parser.add_argument(f"--{flag}", type=_dtype, default=argparse.SUPPRESS)
    for flag in ("causal", "random_actual_seq_len"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--spec_dec_mask", choices=["causal", "full"], default="causal")
    parser.add_argument(
        "--mla-qk-nope-head-dim", "--qk_nope_head_dim", dest="qk_nope_head_dim", type=int, default=argparse.SUPPRESS
    )
    for flag in ("q", "kv"):
        parser.add_argument(f"--mla-{flag}-lengths", dest=f"{flag}_lengths", type=_lengths, default=argparse.SUPPRESS)
    for flag in HOW:
        parser.add_argument(f"--{flag}", action="store_true")
    short = {"num_iters": ["-n"], "dry_run_iters": ["-d"]}
    for flag in HOW_VALUES:
        parser.add_argument(f"--{flag}", *short.get(flag, []))
    parser.add_argument("--random_seed", type=int)
    parser.add_argument("--verbose", "-v", action="count")
    return parser


def _dtype(word: str) -> str:
    try:
        return our_dtype(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _lengths(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.split(","))


def _case(args: argparse.Namespace) -> Case:
    fields = {name: value for name, value in vars(args).items() if name in Case.__dataclass_fields__}
    return Case(**{**fields, "random_seed": SEED if args.random_seed is None else args.random_seed})


def _backends(complaints: Complaints, number: int, routine: str, words: list[str], known: frozenset[str]) -> list[str]:
    for word in words:
        if our_backend(routine, word) not in known:
            complaints.add(number, unknown(f"--backends of {routine}", word, known))
    return [our_backend(routine, word) for word in words]
