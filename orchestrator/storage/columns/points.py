"""Columns of what was asked: which point, which problem."""

from __future__ import annotations

from typing import Annotated, TypedDict

from orchestrator.storage.columns.kinds import About, Status


class Identity(TypedDict, total=False):
    """Which point this is, and its result."""

    run_id: Annotated[str, About("The run that wrote the row: its start in UTC, and four random hex digits.")]
    sweep: Annotated[str, About("Name of the sweep.")]
    point_id: Annotated[str, About("Hash of the problem, the backend, the timing and the check. The same on every machine.")]
    group_id: Annotated[str, About("Hash of the problem, the timing and the check. Points of a group share inputs and reference.")]
    twin: Annotated[int, About("1 for the second measurement of a point in an A/A pair (mode=noise), else 0.", "index")]
    attempt: Annotated[int | None, About("The attempt that gave this row: from 1, or 0 if the point was never started.", "count")]
    status: Annotated[Status, About("ok, unsupported, skipped, mismatch (wrong answer), failed, timeout or oom.")]
    reason: Annotated[str, About("Why the status is not ok. For an ok row: what limits trust in its time, else empty.")]
    command: Annotated[str | None, About("The command that runs this point again.")]


class ProblemColumns(TypedDict, total=False):
    """The problem, and the backend that was to solve it. Lengths are tokens, query tokens included in `s_kv`."""

    routine: Annotated[str, About("paged_decode, paged_prefill, ragged_prefill, mla, cascade or merge_states.")]
    backend: Annotated[str, About("The backend that was asked for.")]
    env: Annotated[str | None, About("The Python environment that the backend ran in. Null: the one that ran the command.")]
    resolved_backend: Annotated[str | None, About("The kernel that ran, if the library tells. Null if it was not prepared.")]
    kernel_config: Annotated[
        str | None,
        About(
            "Other choices of the library, if it tells them, such as num_splits, or the tile and split of keys in FlashInfer's "
            "plan; and inputs that the kernel did not read."
        ),
    ]
    model: Annotated[str, About("Name of the model whose head shape this is, or custom.")]
    tp: Annotated[int, About("Tensor-parallel size. The head counts are those of one GPU.", "GPUs")]
    batch_size: Annotated[int, About("Requests in the batch.", "requests")]
    s_qo: Annotated[
        int, About("Query tokens of each request, for a draft its tokens plus one. The maximum if they differ.", "tokens")
    ]
    min_s_qo: Annotated[int | None, About("If query lengths are drawn, their minimum. Null if all are s_qo.", "tokens")]
    s_kv: Annotated[int, About("KV tokens of each request, its query tokens included. The maximum if they differ.", "tokens")]
    seq_lens: Annotated[str, About("fixed: all s_kv. random: drawn from [s_qo, s_kv]. listed: as in batch_spec.")]
    batch_spec: Annotated[str | None, About("Lengths of a mixed batch in vLLM's grammar, such as 2q2k_8q1s1k, else null.")]
    max_seq_len: Annotated[
        int | None,
        About("KV tokens that the page table has room for, as engines pass it. Null: the batch's own longest.", "tokens"),
    ]
    mask: Annotated[str, About("causal, full, or the name of the draft tree in tree.")]
    tree: Annotated[list[int] | None, About("Parent of each query token in the draft tree, -1 for the root.", "index")]
    window: Annotated[int | None, About("Sliding window: keys that a query sees, its own included. Null: all.", "tokens")]
    sinks: Annotated[bool, About("Whether each head has an attention sink, a learned logit that joins its softmax.")]
    page_size: Annotated[int, About("Tokens in a page of the KV cache.", "tokens")]
    kv_layout: Annotated[str, About("Order of the axes in a page: HND (heads, tokens, elements) or NHD.")]
    page_order: Annotated[str, About("Order of a request's pages in memory: random or sequential.")]
    num_qo_heads: Annotated[int, About("Query heads on one GPU.", "heads")]
    num_kv_heads: Annotated[int, About("Key and value heads on one GPU. In MLA the model's own, before absorption.", "heads")]
    head_dim_qk: Annotated[int, About("Length of a query and a key of one head. In MLA the model's own.", "elements")]
    head_dim_vo: Annotated[int, About("Length of a value and an output of one head. In MLA the model's own.", "elements")]
    head_dim_ckv: Annotated[int | None, About("MLA: length of the compressed latent.", "elements")]
    head_dim_kpe: Annotated[int | None, About("MLA: length of the part of a key that carries the position.", "elements")]
    q_dtype: Annotated[str, About("Dtype of the queries.")]
    kv_dtype: Annotated[str, About("Dtype of the KV cache.")]
    out_dtype: Annotated[str, About("Dtype of the output.")]
    enable_pdl: Annotated[
        bool | None, About("Whether the call asked for programmatic dependent launch. Null: left to the library.")
    ]
    seed: Annotated[int, About("Seed of the inputs and of lengths that are drawn.", "number")]
    shared_prefix: Annotated[
        int | None, About("cascade: tokens at the start of every request whose pages all requests share.", "tokens")
    ]
    return_lse: Annotated[bool, About("Whether the log-sum-exp of each row is a second output.")]
    graph_batch: Annotated[
        int | None,
        About("Requests of the call with padding, as in a captured graph. Null: batch_size. Rates count batch_size.", "requests"),
    ]
    graph_fill: Annotated[
        int,
        About("Tokens of a padded request: 0 as in vLLM, or 1 (of context) as in SGLang.", "tokens", default=0),
    ]
    num_states: Annotated[
        int | None, About("merge_states: partial answers of each query token, one for each range of its request's keys.", "states")
    ]
