"""The keys of an attention problem, and the sizes that follow from them directly. Pure Python, no torch."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from kernels.problem.dtypes import FP8, DtypeName, default_output
from kernels.problem.routine import axes_in, found, routine_of

# Strict: neither true nor "8" is a count. Kernels index with 32 bits.
Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
# Of a softmax: positive and finite. Integers are taken, true is not.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
# Where pages of keys and values lie. paired: [P, 2, ...] in one allocation, as in vLLM 0.25. apart: [2, P, ...], as in
# SGLang's pool. by_token: [P, ..., 2, D], as in vLLM 0.33. padded: pairs with the room of a token behind each page, as hybrid
# models have it (vLLM's `page_size_padded`). degenerate: pairs whose one KV head has the stride 1 (vLLM PR 40737).
KvMemory = Literal["paired", "apart", "by_token", "padded", "degenerate"]
# Of keys and values, or of partial answers over them. Every other routine has a folder in `kernels/routines`.
ROUTINES: tuple[str, ...] = ("paged_decode", "paged_prefill", "ragged_prefill", "mla", "cascade", "merge_states")
ANY_MEMORY: frozenset[KvMemory] = frozenset(get_args(KvMemory))
# What TMA reads: strides of a multiple of 16 bytes. vLLM mends a degenerate one before it calls such a kernel.
TMA_MEMORY = ANY_MEMORY - {"degenerate"}
UNREAD_MEMORY: frozenset[KvMemory] = frozenset({"paired", "apart"})  # of a kernel whose source is not open


def attending() -> tuple[str, ...]:
    """The routines whose answers are attention over keys: those of folders among them."""
    return (*ROUTINES, *(name for name, own in found().items() if own.attends))


def _known(routine: str) -> str:
    names = (*ROUTINES, *found())
    if routine in names:
        return routine
    *most, last = map(repr, names)
    raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": f"{', '.join(most)} or {last}"})


class ProblemFields(BaseModel):
    """What a user asks for, each key checked alone. `Problem` checks them together and computes lengths, bytes and FLOPs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    routine: Annotated[str, AfterValidator(_known)] = "paged_decode"
    model: str = "custom"
    tp: Count = 1  # tensor-parallel size; the head counts are those of one GPU
    batch_size: Count
    s_qo: Count
    min_s_qo: Count | None = None  # if given, query lengths are uniform in [min_s_qo, s_qo]; otherwise all are s_qo
    s_kv: Count
    seq_lens: Literal["fixed", "random", "listed"] = "fixed"
    batch_spec: str | None = None  # lengths of each request, such as 2q2k_8q1s1k; None if they are equal or drawn
    max_seq_len: Count | None = None  # KV tokens that the page table has room for, as engines pass it; None: the batch's longest
    mask: str = "causal"  # causal, full, prefix, or the name of the tree in `tree`
    # mask=prefix: so many query tokens of each request, from its first on, see one another both ways, as those of an image or of a
    # prefix language model do. All others are causal.
    mask_prefix: Count | None = None
    tree: tuple[int, ...] | None = None  # parent of each query token, -1 for the root; every parent comes before its children
    # Keys that a query sees, counted back from its own and including it; under a full mask as many ahead of it too. None: all.
    window: Count | None = None
    sinks: bool = False  # one learned logit per head is added to each softmax
    softmax_scale: Positive | None = None  # multiplies q.k; None: 1/sqrt(head_dim_qk)
    soft_cap: Positive | None = None  # cap * tanh(logit / cap) in place of each scaled logit, but not of a sink's; None: no cap
    page_size: Count = 64
    kv_layout: Literal["HND", "NHD"] = "HND"
    page_order: Literal["random", "sequential"] = "random"
    kv_memory: KvMemory = "paired"
    num_qo_heads: Count
    num_kv_heads: Count
    head_dim_qk: Count
    head_dim_vo: Count
    head_dim_ckv: Count | None = None
    head_dim_kpe: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] | None = None  # 0: keys carry no position apart (NoPE)
    q_dtype: DtypeName = "bf16"
    kv_dtype: DtypeName = "bf16"
    out_dtype: DtypeName | None = None  # None: the query's dtype if it has 16 bits or more, else bf16
    # Of the call alone: whether its kernels launch with programmatic dependent launch. None: the library's own choice.
    enable_pdl: Annotated[bool, Field(strict=True)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**53, strict=True)] = 0
    shared_prefix: Count | None = None  # cascade: tokens at the start of every request, in pages that all requests share
    # The log-sum-exp of each row is a second output. A sink counts, as in FlashInfer, FlashAttention-3 and SGLang's Triton kernel.
    return_lse: Annotated[bool, Field(strict=True)] = False
    graph_batch: Count | None = None  # requests of the captured CUDA graph; those behind the batch are padding. None: the batch
    # The sequence length that an engine fills in for a padded request: 0 in vLLM, 1 in SGLang (`kernels/problem/padded.py`).
    graph_fill: Literal[0, 1] = 0
    # merge_states: the partial answers of each query token, over as many ranges of its request's keys.
    num_states: Annotated[int, Field(ge=2, le=2**31 - 1, strict=True)] | None = None
    # The axes that the routine has of its own and their values, such as `states=each` (`kernels/problem/routine.py`).
    routine_axes: str | None = None

    @cached_property
    def latent(self) -> bool:
        """Whether keys and values are one latent that all heads read."""
        return self.routine == "mla" or ((own := routine_of(self.routine)) is not None and own.latent)

    @property
    def has_second_output(self) -> bool:
        """Whether a kernel writes a log-sum-exp too, or what the routine has in its place."""
        return self.return_lse or ((own := routine_of(self.routine)) is not None and own.second_output)

    def axis(self, key: str) -> int | str | None:
        """The value of an axis that the routine has of its own; None if it has no such axis."""
        return axes_in(self.routine_axes).get(key)

    @property
    def paged(self) -> bool:
        """Whether the KV cache lies in pages."""
        return self.routine != "ragged_prefill"

    @property
    def has_custom_mask(self) -> bool:
        """Whether a kernel that has a causal and a full mask alone needs a mask of its own."""
        return self.tree is not None or self.mask == "prefix"

    @property
    def prefix_tokens(self) -> int:
        """Tokens at the start of every request that are stored once for the whole batch: 0 unless the routine is `cascade`."""
        return self.shared_prefix or 0

    @property
    def state_dtype(self) -> str:
        """The dtype of the partial outputs that `merge_states` merges: the output's, and bf16 under an output of 8 bits."""
        return "bf16" if self.output_dtype in FP8 else self.output_dtype

    @cached_property
    def stored_kv_heads(self) -> int:
        """KV heads in the cache: 1 for a latent, otherwise the model's."""
        return 1 if self.latent else self.num_kv_heads

    @cached_property
    def key_dim(self) -> int:
        """Elements of one query vector and one key vector."""
        return (self.head_dim_ckv or 0) + (self.head_dim_kpe or 0) if self.latent else self.head_dim_qk

    @cached_property
    def value_dim(self) -> int:
        """Elements of one output vector of one head."""
        return (self.head_dim_ckv or 0) if self.latent else self.head_dim_vo

    @cached_property
    def group_size(self) -> int:
        """The GQA ratio: query heads that share one KV head."""
        return self.num_qo_heads // self.stored_kv_heads

    @cached_property
    def output_dtype(self) -> str:
        """The dtype that a kernel must write."""
        return self.out_dtype or default_output(self.q_dtype)
