"""The contract of a backend: a support rule, the kernel modules it compiles, and the call. `kernels/adapters` has examples.

The call, `Runner.launch`:

- It launches its kernels on PyTorch's current stream. It is captured once in a CUDA graph, which is then replayed (with
  `timing.timer=eager` it is called directly). So it must not synchronise with the host, copy to or from it, or depend on values
  that the host reads.
- It writes every element of `Runner.out`, the same tensor in every call. The check fills it with NaN before each checked call.
- Work of once a model step belongs in `prepare`: planning, page tables in a library's own form, packed masks, workspaces.
  What runs in every layer belongs in the call, since that is what is timed.

The inputs (`kernels.inputs.Inputs` has every shape):

- While `prepare` runs, and while the timer warms up and captures, the tensors have their final addresses, shapes and strides, but
  other values: queries, keys and values are different ones. A backend that keeps an answer, or a copy of these, is found out.
  What it may read in another layout, the project copies, untimed (`kernels/inputs/copies.py`): it names the copies in
  `Runner.copies` and declares them. `copies_cache`: the whole cache, as a reference does that cannot read pages.
  `copies_new_tokens`: keys and values of the query tokens in tensors of their own, as an engine's QKV product leaves them.
  `reorders`: queries in another order than the problem's (`kernels/split`); `Runner.rows` says where its answer lies.
- Several backends share the inputs. Never write to them; clone what a library wants to change. Whoever does is named.
  What a call overwrites and reads again `Runner.restore` names with its input, and the project copies it before each call.
- A page table is int32 [B, pages of the longest request], or as wide as `problem.max_seq_len` asks. Entries that a request does not
  use hold 2147480000, far outside the cache: a kernel that follows one crashes. A request without keys (s0 in `batch_spec`) has
  page 0 in all entries, as in engines: it may be loaded. Its output must be 0, and its log-sum-exp -inf or the sink. A call that
  has an argument for the longest request gets `problem.longest`.
- Slots of a last page without a token are poisoned: with NaN if `Adapter.skips_unused_in(problem)`, else, as in nvfp4, with 240.
- `Inputs.sm_scale` multiplies q.k, and `problem.soft_cap`, if there is one, makes cap * tanh(logit / cap) of each scaled logit.
  `k_scale` and `v_scale` multiply stored keys and values. These two are 1 for caches of 16 and 32 bits. For FP8 and nvfp4 they are
  0.5 and 0.75: different, and not 1, so that a backend that forgets or exchanges them gives a wrong answer. MLA's latent is keys
  and values at once, so both are 0.5. nvfp4 has block scales besides (`Inputs.kv_scales`).
- The cache is [P, K, N, D] (`kv_layout` HND) or [P, N, K, D] (NHD). `token_major(problem, cache)` of `kernels.inputs.tensors` is
  the NHD view of either. Its strides are what `kv_memory` asks for: those of keys and of values are equal, and no page need follow
  another. `Inputs.tokens(request, start, stop)` gathers a request's keys and values, [tokens, K, D].
- `Inputs.empty_output()` allocates the output, [query tokens, H, D_vo], in the dtype that the problem asks for.
- `Inputs.empty_lse()` allocates the log-sum-exp, fp32 [query tokens, H], if `problem.return_lse` asks for it, else it is None.
  It is the logarithm of the sum of exp(logit) over the keys of a row, with the softmax scale, in the base that `Runner.lse_base`
  states. The check judges it beside the output. A backend that declares no `gives_lse` is not asked for it.
- In the routine `merge_states` the project makes the states to merge (`States`), since the merge alone is timed.
- In the routine `cascade` the page tables of all requests begin with the same `problem.prefix_pages` pages.
- With `graph_batch` the last requests are padding (`kernels/inputs/generate.py`), without a token if `graph_fill` is 0. They have
  rows in queries and output all the same, and what is written into these is not looked at.
"""

# B = batch_size, P = pages, N = slots a page, H = num_qo_heads, K = stored KV heads, D = head_dim
from __future__ import annotations

import inspect
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Literal, NamedTuple

from kernels.contract.releases import Since, Versions, is_from, meets, name_of, requirements
from kernels.contract.runner import LseBase, PlanStep, Runner, nothing_to_plan, without_padding
from kernels.contract.toolchain import Module
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.copies import CopiedCache, InputCopy, NewTokens, OrderedQueries, States
from kernels.problem import Problem
from kernels.problem.features import Feature, features_of
from kernels.problem.fields import ANY_MEMORY, KvMemory
from kernels.problem.padded import launched
from kernels.problem.routine import FOLDERS

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 has none, under which other environments may run this


__all__ = [  # all that the contract names, so that most backends need this import alone
    "Adapter", "Device", "EngineMaximum", "Inputs", "LseBase", "Module", "Need", "PlanStep", "Problem", "QueryLengths", "Runner",
    "Since", "nothing_to_plan",
]  # fmt: skip
QueryLengths = Literal["single", "uniform", "varlen"]
# What becomes of `problem.max_seq_len`. passed: it reaches the call, as a number or as the width of the page table.
# unread: the kernel reads neither, so the engine's maximum changes nothing.
# refused: the call would take the batch's own maximum in its place.
EngineMaximum = Literal["passed", "unread", "refused"]


@dataclass(frozen=True, kw_only=True)
class Adapter(ABC):
    """One backend of one routine. Everything but `prepare` is pure: no CUDA, no torch, no import of a kernel library.

    What every backend must answer is a field. A subclass declares its values as defaults, or its objects are given them.
    Decorate a subclass with `@dataclass(frozen=True, kw_only=True)`. Creating an object raises TypeError if its class sets a
    declared name without being a dataclass, since the value would be ignored.
    """

    routine: str
    name: str
    query_lengths: QueryLengths
    takes_window: bool = False  # serves a sliding window
    takes_prefix_mask: bool = False  # serves mask=prefix, whose first query tokens see one another both ways
    takes_two_sided_window: bool = False  # serves a window under a full mask, which reaches ahead as far as back
    takes_more_queries: bool = False  # serves requests with more query tokens than keys, as in cross attention
    takes_sinks: bool = False  # serves attention sinks
    takes_soft_cap: bool = False  # caps logits softly
    gives_lse: bool = False  # can write the log-sum-exp of each row as a second output; see `gives_lse_in`
    max_seq_len: EngineMaximum = "refused"
    reads_memory: frozenset[KvMemory] = ANY_MEMORY  # by strides; fewer if a kernel takes them from shapes, or reads by TMA
    takes_empty: bool = False  # serves requests without a token, with which vLLM pads its graphs (`graph_fill=0`)
    takes_no_keys: bool = False  # writes 0 and -inf (a sink: the sink) for a request with query tokens and no key
    gets_padding: bool = True  # `needs` and `prepare` get the padded requests too; a mutant, made of another backend, does not
    takes_pdl: bool = False  # the call says whether to use programmatic dependent launch; see `takes_pdl_in`
    takes_num_splits: bool = False  # the call is told how many parts to make of the keys, or at most to make
    num_splits: int | None = None  # which number that is (`kernels/contract/splits.py`); None: the library's choice
    skips_unused: bool = False  # never computes with slots that hold no token; see `skips_unused_in`
    copies_cache: bool = False  # the call reads a copy of the cache, which no engine has: ranked only where nothing else ran
    copies_new_tokens: bool = False  # the call reads keys and values of the query tokens beside the cache, where an engine has them
    distributions: tuple[str, ...] = ()  # the Python packages that its kernels come from, by their names on PyPI
    also_calls: tuple[str, ...] = ()  # packages that it calls for some problems besides; `distributions_for` says for which
    imports: str = ""  # the Python package that `prepare` imports; a worker on a GPU loads it before its first point
    extra: str = ""  # the extra of this project that installs them, if they do not come with it
    passes: frozenset[Feature] | None = None  # the features of a problem that `prepare` hands to its kernel; see `passed_on`
    rules_hold_for: tuple[str, ...] = ()  # the releases that its rule is known for, such as "flashinfer-python>=0.6,<0.8"; (): all
    installed: tuple[tuple[str, str], ...] = ()  # the versions of its distributions that it is asked about; see `for_versions`

    def __new__(cls, *_args: object, **_keys: object) -> Self:
        _require_fields(cls)
        return super().__new__(cls)

    @property
    def all_distributions(self) -> tuple[str, ...]:
        """The packages that it may call for any problem."""
        return (*self.distributions, *self.also_calls)

    def distributions_for(self, problem: Problem) -> tuple[str, ...]:
        """The packages that it calls for this problem: they must be installed, and the row names their versions.

        Override this if some problems need more than `distributions`, and declare what may come in `also_calls`.
        """
        return self.distributions

    def to_install(self, names: Sequence[str]) -> tuple[str, ...]:
        """What pip is asked for to have these of its packages: an extra of the checkout, or releases that the rule is known for."""
        others = [name for name in names if not self.extra or name not in self.distributions]
        by_extra = () if len(others) == len(names) else (f".[{self.extra}]",)
        return (*by_extra, *requirements(others, self.rules_hold_for))

    def how_to_install(self, names: Sequence[str]) -> str:
        """What to type to have these of its packages."""
        return f"type: pip install {shlex.join(self.to_install(names))}"

    def for_versions(self, versions: Versions) -> Self:
        """The same backend with the rule and modules for these versions of its distributions; without, for the release read."""
        found = tuple((name, of) for name in self.all_distributions if (of := versions.get(name)))
        return self if found == self.installed else replace(self, installed=found)

    def is_from(self, release: str) -> bool:
        """Whether the first of its distributions is of this release or a later one. Without versions it is."""
        own = next((of for name, of in self.installed if name == self.distributions[0]), None)
        return own is None or is_from(own, release)

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        """What this problem asks for that the first of its distributions has, or whose rule is known, since a release only."""
        return ()

    def skips_unused_in(self, problem: Problem) -> bool:
        """Whether slots without a token never enter this problem's arithmetic.

        The check fills them with NaN if so, and with a large finite number if not. Override this if it depends on the problem.
        """
        return self.skips_unused

    def reads_copy(self, copy: InputCopy, problem: Problem) -> bool:
        """Whether it declares that its call reads such a copy of inputs. One of another class is nobody's."""
        declared = {CopiedCache: self.copies_cache, NewTokens: self.copies_new_tokens, OrderedQueries: self.reorders(problem)}
        of_routine = type(copy).__module__.startswith(f"{FOLDERS}.{self.routine}.")
        return {**declared, States: self.routine == "merge_states"}.get(type(copy), of_routine)

    def passed_on(self, device: Device) -> frozenset[Feature]:
        """The features of a problem (`kernels.problem.features`) that `prepare` hands to its kernel on this device.

        They say what a forced run shows: a kernel that does not get a feature is wrong whatever it can do. Without a
        declaration these are the features that the fields say it serves. Override this if it depends on the device.
        Leave padded requests out: `all_passed_on` adds them.
        """
        if self.passes is not None:
            return self.passes
        served: dict[Feature, bool] = {
            "a sliding window": self.takes_window,
            "attention sinks": self.takes_sinks,
            "a soft cap of logits": self.takes_soft_cap,
            "query lengths that differ": self.query_lengths == "varlen",
        }
        return frozenset(feature for feature, is_served in served.items() if is_served)

    def not_passed(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """What this problem has or asks for and `prepare` does not hand to its kernel on this device, in words."""
        passed = self.all_passed_on(device)
        second = ("the wish for a log-sum-exp",) if problem.return_lse and not self.gives_lse_in(problem, device) else ()
        return (*(feature for feature in features_of(problem) if feature not in passed), *second)

    def gives_lse_in(self, problem: Problem, device: Device) -> bool:
        """Whether `prepare` asks the call that serves this problem for a log-sum-exp, and returns it. Override this if it depends.

        If not, `needs` must say so, and a forced run of a problem that wants one shows nothing. A backend may ask for one and yet
        declare no `gives_lse`, since the library refuses: then a forced run shows that it does.
        """
        return self.gives_lse

    def all_passed_on(self, device: Device) -> frozenset[Feature]:
        """`passed_on`, with padded requests, of which a kernel hears by their lengths."""
        passed = self.passed_on(device)
        return passed | {"padded requests"} if "KV lengths that differ" in passed else passed

    def takes_pdl_in(self, problem: Problem, device: Device) -> bool:
        """Whether `problem.enable_pdl` reaches the kernel that serves this problem. Override this if it depends on them."""
        return self.takes_pdl

    def reorders(self, problem: Problem) -> bool:
        """Whether the call reads this problem's queries in another order, so that `Runner.rows` is set. Override this if it does.

        A step computes queries in the problem's order, so `timing.context=step` serves no such call.
        """
        return False

    @abstractmethod
    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        """The support rule. The sentences that are not met become the reason in the row."""

    @abstractmethod
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        """Plans the kernel for these inputs on this device, and returns the call. The module's docstring has the contract.

        An exception becomes the point's `failed` row, or its `oom` row if memory ran out.
        """

    def prepared(self, inputs: Inputs, device: Device) -> Runner:
        """The call on these inputs, with padded requests if any. TypeError for copies or orders that are not declared."""
        given = inputs if inputs.padded is None or not self.gets_padding else inputs.padded
        runner = self.prepare(given, device)
        for copy in runner.copies:
            if not self.reads_copy(copy, given.problem):
                raise TypeError(f"{self.name} reads a copy of inputs that it does not declare: {_in_words(copy)}")
        inputs_of = [id(tensor) for tensor in (None, *vars(given).values())]
        if not all(id(tensor) in inputs_of for one in runner.restore for tensor in (one.source, one.rows)):
            raise TypeError(f"{self.name} restores from a tensor that is no input: Runner.restore names fields of the inputs")
        if not (runner.rows is None or isinstance(runner.rows, slice) or self.reorders(given.problem)):
            raise TypeError(f"{self.name} sets Runner.rows and does not declare `reorders`: its rows must lie as in the queries")
        return runner if given is inputs else without_padding(runner, inputs)

    def config_of(self, runner: Runner, problem: Problem) -> str:
        """What the library chose beside the kernel, and `max_seq_len=unread` if the problem has one and the kernel reads none."""
        unread = ["max_seq_len=unread"] if problem.max_seq_len is not None and self.max_seq_len == "unread" else []
        return " ".join([*filter(None, [runner.kernel_config]), *unread])

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        """The kernel modules that `prepare` loads. They are compiled before, on machines that have a compiler."""
        return ()

    def workspace_bytes(self, problem: Problem) -> int:
        """Bytes of device memory beyond the inputs and one output: workspaces and copies."""
        return 0

    def unmet(self, problem: Problem, device: Device) -> list[str]:
        """The sentences that this problem on this device does not meet; empty if supported. ValueError for two of one sentence."""
        sentences, met = zip(*self.conditions(problem, device), strict=True)
        if len(set(sentences)) < len(sentences):
            twice = next(sentence for i, sentence in enumerate(sentences) if sentence in sentences[:i])
            raise ValueError(f"{self.routine} backend '{self.name}' has two conditions '{twice}'; give each its own sentence")
        return [] if all(met) else [sentence for sentence, is_met in zip(sentences, met, strict=True) if not is_met]

    def conditions(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        """The whole rule: what the fields declare, and `needs`."""
        choices = (*self._choices(problem, device), *self._hardware_of_choices(problem, device))
        of_kernel = launched(problem) if self.gets_padding else problem
        found = self.needs(of_kernel, device)
        # A plugin from before `Need` existed returns a dict of sentence and truth.
        needs = [Need(*pair) for pair in found.items()] if isinstance(found, dict) else found
        return (*self._declared_needs(problem), *choices, *needs, *self._release_needs(of_kernel, device))

    def _release_needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        """What the versions that it is asked about do not have. None without versions."""
        if not self.installed:
            return ()
        called = [(name, of) for name, of in self.installed if name in self.distributions_for(problem)]
        pairs = [(rule, name, of) for name, of in called for rule in self.rules_hold_for if name_of(rule) == name]
        unknown = [Need(f"{rule} (not known for {name} {of})", False) for rule, name, of in pairs if not meets(rule, of)]
        if unknown:
            return tuple(unknown)
        own = self.distributions[0]
        later = [one for one in self.since(problem, device) if not self.is_from(one.release)]
        return tuple(Need(f"{own} {one.release} or later for {one.what}", not one.asked) for one in later)

    def _declared_needs(self, problem: Problem) -> tuple[Need, ...]:
        p = problem
        met = (
            self.query_lengths != "single" or p.s_qo == 1,
            self.query_lengths == "varlen" or p.min_s_qo is None,
            self.takes_window or p.window is None,
            self.takes_two_sided_window or p.window is None or p.mask != "full" or p.s_qo == 1,
            self.takes_prefix_mask or p.mask != "prefix",
            self.takes_more_queries or p.s_qo <= p.s_kv,
            self.takes_no_keys or not p.lacks_keys,
            p.kv_memory in self.reads_memory,
            self.takes_sinks or not p.sinks,
            self.takes_soft_cap or p.soft_cap is None,
            self.gives_lse or not p.return_lse,
            self.takes_empty or p.graph_batch is None or p.graph_fill > 0,
        )
        return DECLARED_MET if all(met) else tuple(map(Need, DECLARED, met))

    def lacks_choice(self, problem: Problem, device: Device) -> bool:
        """Whether the problem sets what this call has no place for: a run would time the call without it, and show nothing."""
        return not all(need.met for need in self._choices(problem, device))

    def _choices(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        met = (
            p.max_seq_len is None or self.max_seq_len != "refused",
            self.num_splits is None or self.takes_num_splits,
            p.enable_pdl is None or self.takes_pdl_in(p, device),
        )
        return CHOICES_MET if all(met) else tuple(map(Need, CHOICES, met))

    def _hardware_of_choices(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (Need("SM90 or later for enable_pdl=true", not problem.enable_pdl or device.major >= 9),)


def _in_words(copy: InputCopy) -> str:
    """How to declare a copy."""
    name, module = type(copy).__name__, InputCopy.__module__
    own = type(copy).__module__ == module
    return f"{name} needs {copy.declared}" if own else f"{name} is no class of {module}, and the project makes all copies"


class Need(NamedTuple):
    """One condition of a support rule: a sentence for the row, such as "page_size 16, 32 or 64", and whether it is met.

    A tuple, since a plan of a million points makes ten million of them.
    """

    sentence: str
    met: bool


# The conditions that the fields declare. Nearly always all are met, and then they are one tuple: a large plan has a million.
DECLARED = (
    "one query token a request", "the same number of query tokens for every request", "no sliding window",
    "no sliding window under a full mask", "no prefix mask", "no more query tokens than keys",
    "a key for every request (no s0 in batch_spec)", "strides of a cache that the kernel takes (kv_memory)", "no attention sinks",
    "no soft cap of logits", "no log-sum-exp as a second output", "no padded requests without a token (graph_fill=0)",
)  # fmt: skip
CHOICES = ("max_seq_len left to the batch (null)", "num_splits left to the library (null)", "enable_pdl left to the library (null)")
DECLARED_MET, CHOICES_MET = (tuple(Need(sentence, True) for sentence in sentences) for sentences in (DECLARED, CHOICES))


@cache  # thousands of wrong kernels are made of few classes
def _require_fields(of: type[Adapter]) -> None:
    for name, declared in of.__dataclass_fields__.items():
        value = inspect.getattr_static(of, name, MISSING)
        if value is not declared.default and not isinstance(value, MemberDescriptorType):
            raise TypeError(
                f"{of.__name__}.{name} is not a field: decorate the class with @dataclass(frozen=True, kw_only=True) "
                f"and declare it as `{name}: {declared.type} = ...`"
            )
