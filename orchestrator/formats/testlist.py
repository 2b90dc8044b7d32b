"""Reads the test lists of FlashInfer's `flashinfer_benchmark.py`: each line has the arguments of one case and its backends."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from functools import partial
from itertools import dropwhile
from typing import Any, NoReturn

from kernels.problem import Problem
from orchestrator.formats.flashinfer import ROUTINES, SEED, BenchmarkCase, our_backend, our_dtype, problem_keys
from orchestrator.remainder import NotTaken, Remainder
from orchestrator.untrusted.files import read_text

Rule = dict[str, Any]

MAX_BYTES, MAX_LINE = 16 * 10**6, 10_000

NUMBER_OPTIONS = (
    *("batch_size", "s_kv", "num_qo_heads", "num_kv_heads", "s_qo", "page_size"),
    *("head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe"),
)
REQUIRED_OPTIONS = frozenset({"batch_size", "s_kv", "num_qo_heads"})
# How to measure, check, print and name: timing=, check= and the row replace these. `random_seed` also draws lengths.
MEASURING_FLAGS = ("no_cuda_graph", "use_cupti", "use_cuda_events", "refcheck", "allow_output_mismatch", "generate_repro_command")
MEASURING_OPTIONS = ("num_iters", "dry_run_iters", "case_tag", "repro_command", "output_path", "autotune_cache")
IGNORED = (*MEASURING_FLAGS, *MEASURING_OPTIONS, "verbose", "random_seed")
KERNEL_OPTIONS = ("autotune", "mla_is_var_seq", "mla_cute_dsl_impl")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule of a sweep for each line of attention, and a sentence on what of the file is ignored or left out.

    `known` has the backends of each routine; None leaves the file's backends unchecked. Raises UserError if no line is left.
    """
    rest, given, rules = Remainder(path), set[str](), list[Rule]()
    for number, line in enumerate(read_text(path, "import", MAX_BYTES).split("\n"), 1):
        if (text := line.strip()) and not text.startswith("#"):
            args = rest.collect(number, lambda text=text: _arguments(text))  # type: ignore[misc]
            if args is None or (rule := rest.collect(number, lambda args=args: _rule(args))) is None:  # type: ignore[misc]
                continue
            if backends := _backends(rest, number, str(rule["routine"]), args.backends, known):
                rules.append({**rule, "backend": backends})
                given.update(filter(partial(getattr, args), IGNORED))
                for option in filter(partial(getattr, args), KERNEL_OPTIONS):
                    rest.add(number, "with options that kernels choose here by themselves", f"--{option}")
    if not rules and not rest.found:
        rest.add(1, "no case in it; allowed: lines such as --routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 ...")
    left = rest.close(len(rules), f"allowed: --routine {', '.join(ROUTINES)}; +sweep.backend=[fa2,cudnn] names backends for all")
    how = f"; {', '.join(f'--{flag}' for flag in sorted(given))} give way to timing= and check=" if given else ""
    return rules, f"the {len(rules)} cases of {path}{how}{left}"


def _arguments(text: str) -> argparse.Namespace:
    """The arguments of a line, which may be a pasted command with its program. Raises ValueError for what has no counterpart."""
    if len(text) > MAX_LINE:
        raise ValueError(f"{len(text):,} characters in a line; allowed: up to {MAX_LINE:,}")
    parts = list(dropwhile(lambda word: not word.startswith("-"), shlex.split(text)))
    first = _Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--routine", "-R")
    if (routine := first.parse_known_args(parts)[0].routine) not in ROUTINES:
        raise NotTaken("of other routines", routine or "no --routine")
    args, unknown_words = _parser().parse_known_args(parts)
    if unknown_words:
        raise ValueError(f"{unknown_words[0]!r} has no counterpart here")
    return args


def _rule(args: argparse.Namespace) -> Rule:
    fields = {name: value for name, value in vars(args).items() if name in BenchmarkCase.__dataclass_fields__}
    keys = problem_keys(BenchmarkCase(**{**fields, "random_seed": SEED if args.random_seed is None else args.random_seed}))
    Problem.model_validate(keys)
    return keys


def _parser() -> _Parser:
    """The flags of an attention case in the benchmark's own parser, abbreviations included."""
    parser = _Parser(add_help=False)
    parser.add_argument("--routine", "-R")
    parser.add_argument("--backends", nargs="+", default=["fa2"])
    for flag in NUMBER_OPTIONS:
        parser.add_argument(f"--{flag}", type=int, required=flag in REQUIRED_OPTIONS, default=argparse.SUPPRESS)
    for flag in ("q_dtype", "kv_dtype", "out_dtype"):
        parser.add_argument(f"--{flag}", type=_dtype, default=argparse.SUPPRESS)
    for flag in ("causal", "random_actual_seq_len"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--enable_pdl", action="store_true", default=argparse.SUPPRESS)
    parser.add_argument("--autotune", action="store_true")
    for flag in ("mla_is_var_seq", "mla_cute_dsl_impl"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--spec_dec_mask", choices=["causal", "full"], default="causal")
    parser.add_argument(
        "--mla-qk-nope-head-dim", "--qk_nope_head_dim", dest="qk_nope_head_dim", type=int, default=argparse.SUPPRESS
    )
    for flag in ("q", "kv"):
        parser.add_argument(f"--mla-{flag}-lengths", dest=f"{flag}_lengths", type=_lengths, default=argparse.SUPPRESS)
    for flag in MEASURING_FLAGS:
        parser.add_argument(f"--{flag}", action="store_true")
    short = {"num_iters": ["-n"], "dry_run_iters": ["-d"]}
    for flag in MEASURING_OPTIONS:
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


def _backends(
    rest: Remainder, number: int, routine: str, given: list[str], known: Mapping[str, frozenset[str]] | None
) -> list[str]:
    names = [our_backend(routine, name) for name in given]
    if known is None:
        return names
    for name in names:
        if name not in known[routine]:
            rest.add(number, f"with backends that {routine} has not here", name)
    return [name for name in names if name in known[routine]]
