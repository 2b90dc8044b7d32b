"""Reads the test lists of FlashInfer's `flashinfer_benchmark.py`: each line has the arguments of one case and its backends."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from functools import cache
from itertools import dropwhile
from typing import Any, NoReturn

from kernels.problem import Problem
from orchestrator.errors import NotTaken
from orchestrator.formats.flashinfer import ROUTINES, BenchmarkCase, our_backend, our_dtype, problem_keys
from orchestrator.remainder import Remainder
from orchestrator.untrusted.files import read_text

Rule = dict[str, Any]

MAX_BYTES, MAX_LINE = 16 * 10**6, 10_000

# How to measure, check, print and name: timing=, check= and the row replace these. `random_seed` also draws lengths.
MEASURING_FLAGS = ("no_cuda_graph", "use_cupti", "use_cuda_events", "refcheck", "allow_output_mismatch", "generate_repro_command")
MEASURING_OPTIONS = ("case_tag", "repro_command", "output_path", "autotune_cache")
IGNORED = (*MEASURING_FLAGS, *MEASURING_OPTIONS, "num_iters", "dry_run_iters", "verbose", "random_seed")
KERNEL_OPTIONS = ("autotune", "mla_is_var_seq", "mla_cute_dsl_impl")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(path: str, known: Mapping[str, frozenset[str]] | None) -> tuple[list[Rule], str]:
    """A rule of a sweep for each line of attention, and a sentence on what of the file is ignored or left out.

    `known` has the backends of each routine; None leaves the file's backends unchecked. Raises UserError if no line is left.
    """
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
    """The arguments of a line, which may be a pasted command with its program, and the keys of its problem.

    Raises ValueError for what has no counterpart.
    """
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


def _lengths(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.split(","))


# The flags of an attention case, and how the benchmark's own parser takes them.
FLAGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--routine", "-R"): {},
    ("--backends",): {"nargs": "+", "default": ["fa2"]},
    **{(f"--{name}",): {"type": int, "required": True} for name in ("batch_size", "s_kv", "num_qo_heads")},
    **{(f"--{name}",): {"type": int} for name in ("num_kv_heads", "s_qo", "page_size", "random_seed")},
    **{(f"--head_dim_{name}",): {"type": int} for name in ("qk", "vo", "ckv", "kpe")},
    ("--mla-qk-nope-head-dim", "--qk_nope_head_dim"): {"type": int, "dest": "qk_nope_head_dim"},
    **{(f"--mla-{name}-lengths",): {"type": _lengths, "dest": f"{name}_lengths"} for name in ("q", "kv")},
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
