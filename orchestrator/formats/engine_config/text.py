"""The choices of an engine as flags. Comments above each say what it saves, and on what evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.margin import MUCH_SLOWER
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.rough import ROUGH
from orchestrator.config.draft_cost import Draft
from orchestrator.errors import UserError
from orchestrator.formats.engine_config.choice import FlagChoice, FlagEvidence, choose
from orchestrator.formats.engine_config.draft_text import draft_lines
from orchestrator.formats.engine_config.flags import PHASES, VERSIONS, Engine, Flag, LayerKind, Phase, flags_of
from orchestrator.formats.engine_config.shapes import Section, Shape, extent, phases_of, sections

KINDS: tuple[LayerKind, ...] = ("full_attention", "sliding_window", "mla_attention")
CACHE_DTYPES = {"fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}  # 16 bits are both engines' default
# Of SGLang's flags, for the choices of prefill and of decode.
SGLANG_PHASES: tuple[tuple[Phase, str], ...] = (
    ("prefill", "--prefill-attention-backend"),
    ("decode", "--decode-attention-backend"),
)


@dataclass(frozen=True)
class Request:
    """What is asked of a dataset: the engine, the costs of drafts, and the dataset's path, which comments name."""

    engine: Engine
    draft: Draft
    path: str


def config_text(data: Dataset, engine: Engine, draft: Draft, path: str) -> str:
    """The whole text, with a part for each server that the dataset has shapes of. Raises UserError if there are none."""
    found = sections(data)
    if not found and (too_big := left_out(data, ["device_name"])):
        raise UserError(f"export={engine}: no shape of results.path={path} is left; {'; '.join(too_big.values())}")
    return text_of(found, Request(engine, draft, path))


def text_of(found: Iterable[Section], request: Request) -> str:
    """The whole text for these sections. Raises UserError if there are none."""
    parts = [_part(section, request) for section in found]
    if not parts:
        raise UserError(
            f"export={request.engine}: no row of results.path={request.path!r} was measured on a GPU with equal "
            f"requests and a causal mask, which a flag is chosen for; type another results.path=..., or leave where= out"
        )
    return "\n\n".join(parts) + "\n"


def _part(section: Section, request: Request) -> str:
    lines = [*_heading(section, request)]
    lines += _vllm(section, request) if request.engine == "vllm" else _sglang(section, request)
    if any(line.startswith("--") for line in lines) and (name := CACHE_DTYPES.get(section.keys["kv_dtype"])):
        lines.append(f"# all of this was measured over such a cache\n--kv-cache-dtype {name}")
    return "\n".join(lines)


def _heading(section: Section, request: Request) -> Iterator[str]:
    keys = section.keys
    heads = f"{keys['num_qo_heads']} query and {keys['num_kv_heads']} KV heads a GPU"
    dtypes = f"{keys['out_dtype']} over a cache of {keys['kv_dtype']}"
    yield f"# {VERSIONS[request.engine]} on {keys['device_name']}: {keys['model']}, {heads}, {dtypes}"
    how = "the cost in a step" if keys["context"] == "step" else f"isolated calls, {keys['l2']} L2"
    yield f"# measured: {request.path}, {', '.join(section.libraries) or 'unknown libraries'}; {how}"
    if section.too_big:
        yield f"# {section.too_big}"


# ---- vLLM: one backend for all phases of a kind of layers


def _vllm(section: Section, request: Request) -> Iterator[str]:
    backends: dict[str, str] = {}
    settings: dict[str, object] = {}
    for kind in KINDS:
        if not (shapes := section.shapes_of(kind)):
            continue
        choice = choose(shapes, flags_of("vllm", section.major, kind), section.major)
        yield from _comments(kind, choice, shapes)
        if choice.flag is None:
            continue
        if clash := {key for key, value in choice.flag.settings.items() if settings.get(key, value) != value}:
            yield f"#   no line for {kind}: {', '.join(sorted(clash))} has another value above, and vLLM has one for all kinds"
            continue
        backends[kind], settings = choice.flag.name, {**settings, **choice.flag.settings}
        if section.keys["kv_dtype"] in CACHE_DTYPES and choice.flag.name == "FLASHINFER" and not choice.flag.rounds_q:
            settings["disable_flashinfer_q_quantization"] = True
        yield from _not_measured(kind, shapes)
    if backends:
        yield f"--attention-config '{json.dumps({'backend_per_kind': backends, **settings})}'"
    yield from draft_lines(section, request.draft)


def _not_measured(kind: LayerKind, shapes: Sequence[Shape]) -> Iterator[str]:
    absent = [
        phase for phase in PHASES if phase not in phases_of(list(shapes)) and not (kind == "mla_attention" and phase == "prefill")
    ]
    if absent:
        yield f"#   not measured, and changed by this line too: {', '.join(absent)}"


# ---- SGLang: a backend for prefill, one for decode, and which of the two runs drafts


def _sglang(section: Section, request: Request) -> Iterator[str]:
    flags: list[str] = []
    for kind in KINDS:
        shapes = section.shapes_of(kind)
        chosen: dict[Phase, FlagChoice] = {}
        for phase, key in SGLANG_PHASES:
            if not (of_phase := [shape for shape in shapes if shape.phase == phase]):
                continue
            choice = chosen[phase] = choose(of_phase, flags_of("sglang", section.major, kind), section.major)
            yield from _comments(kind, choice, of_phase)
            if choice.flag is not None:
                line = f"{key} {choice.flag.name}"
                if any(other.startswith(key) and other != line for other in flags):
                    yield f"#   no line for {kind}: SGLang has one {key} for all kinds of layers, and it is set above"
                    continue
                flags += [line, *_page_size(choice.flag, of_phase)]
        if verify := [shape for shape in shapes if shape.phase == "verify"]:
            yield from _verify_mode(kind, section, verify, chosen, flags)
    yield from dict.fromkeys(flags)
    if any(shape.phase == "verify" for shape in section.shapes):
        yield "# no draft table: SGLang takes one number of drafts for all batches; question=draft has the best for each"


def _page_size(flag: Flag, shapes: Sequence[Shape]) -> list[str]:
    pages = sorted({shape.page_size for shape in shapes if shape.page_size})
    return [f"--page-size {pages[0]}"] if flag.pages is not None and len(pages) == 1 else []


def _verify_mode(
    kind: LayerKind, section: Section, shapes: list[Shape], chosen: dict[Phase, FlagChoice], flags: list[str]
) -> Iterator[str]:
    """Drafts run on prefill's backend, unless the mode is `decode`."""
    names = flags_of("sglang", section.major, kind)
    prefill = chosen["prefill"].runs if "prefill" in chosen else next((f for f in names if section.major in f.default_on), None)
    decode = chosen["decode"].runs if "decode" in chosen else None
    if decode is None or prefill is None:
        yield f"# {kind}, verify: no line, drafts run on the backend of prefill or of decode, and no row is of decode (s_qo 1)"
        return
    if decode is prefill:
        yield f"# {kind}, verify: no line, since prefill and decode both run {decode}"
        return
    as_default = [
        Flag(f.name, f.majors, f.kinds, f.calls, f.settings, f.pages, (section.major,) if f is prefill else ())
        for f in (prefill, decode)
    ]
    choice = choose(shapes, as_default, section.major)
    yield from _comments(kind, choice, shapes, base="prefill's backend")
    if choice.flag is not None:
        flags.append("--speculative-attention-mode decode")


# ---- both


def _comments(kind: LayerKind, choice: FlagChoice, shapes: Sequence[Shape], base: str = "the default") -> Iterator[str]:
    phases = ", ".join(phases_of(list(shapes)))
    if choice.flag is not None:
        yield f"# {kind}, {phases}: {choice.flag} instead of {base} {choice.default}"
    elif choice.default is not None and choice.evidence:
        yield f"# {kind}, {phases}: no line, {base} {choice.default} stays: {choice.why}"
    else:
        yield f"# {kind}, {phases}: no line: {choice.why}"
    for evidence in choice.evidence:
        yield f"#   {_evidence(evidence)}"
    yield from _but_at_worst(choice, base)
    for reason in choice.refused:
        yield f"#   not a choice: {reason}"
    if choice.unnamed:
        yield f"#   {choice.unnamed}"


def _but_at_worst(choice: FlagChoice, base: str) -> Iterator[str]:
    """What is much slower somewhere although it is chosen, or kept, and where."""
    pairs = [pair for evidence in choice.evidence for pair in evidence.pairs]
    if not pairs:
        return
    times = [pair.own.us / pair.default.us if choice.flag else pair.default.us / pair.own.us for pair in pairs]
    worst = max(range(len(pairs)), key=lambda i: times[i])
    if times[worst] > MUCH_SLOWER:
        name = f"take {choice.flag}" if choice.flag else f"keep {choice.default}"
        other = f"{base} {choice.default}" if choice.flag else choice.next_best
        yield f"#   {name}, but at {pairs[worst].shape} it takes {times[worst]:.2f} times {other}"
        yield f"#   more than {MUCH_SLOWER:g} times its time at {sum(one > MUCH_SLOWER for one in times)} of {len(times)} shapes"


def _evidence(evidence: FlagEvidence) -> str:
    shapes = [shape for shape, _, _ in evidence.pairs]
    change = f"{abs(evidence.saving):.1%} {'less' if evidence.saving >= 0 else 'more'} time"
    axes = {"batch": [s.batch_size for s in shapes], "s_kv": [s.s_kv for s in shapes], "s_qo": [s.s_qo for s in shapes]}
    where = ", ".join(f"{name} {extent(values)}" for name, values in axes.items())
    noise = f"faster by more than noise at {evidence.ahead}, slower at {evidence.behind}"
    default, own = [pair.default.median_us for pair in evidence.pairs], [pair.own.median_us for pair in evidence.pairs]
    medians = f"medians {_us(own)} against {_us(default)} µs"
    worst = f"at worst {max(pair.own.us / pair.default.us for pair in evidence.pairs):.2f} times the other's"
    on_times = f"{medians}{_errors(evidence)}{_how_known(evidence)}"
    return f"{evidence.phase}: {change} (geometric mean of {len(shapes)} shapes: {where}; {worst}; {noise}; {on_times})"


def _errors(evidence: FlagEvidence) -> str:
    """The largest error of both sides against the reference, where both are known."""
    default, own = [pair.default.rel_err for pair in evidence.pairs], [pair.own.rel_err for pair in evidence.pairs]
    if None in default or None in own:
        return ""
    return f"; largest error {max(filter(None, own), default=0):.2g} against {max(filter(None, default), default=0):.2g}"


def _how_known(evidence: FlagEvidence) -> str:
    """How many of the times on both sides are rough, and which backends have the time of another one."""
    sides = [side for pair in evidence.pairs for side in (pair.default, pair.own)]
    rough = sum(side.rough for side in sides)
    found = [f"{rough} of {len(sides)} times are rough, only known within {ROUGH:.0%}"] if rough else []
    sources = sorted({(side.shown, side.measured_as) for side in sides if side.measured_as is not None})
    found += [f"{shown} measured as {source}, which makes the same call" for shown, source in sources]
    return "".join(f"; {words}" for words in found)


def _us(values: Sequence[float]) -> str:
    return f"{min(values):,.1f} to {max(values):,.1f}"
