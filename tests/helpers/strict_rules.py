"""Support rules that forbid what a GPU computes correctly."""

from __future__ import annotations

# A pattern of the reason in a row, and why the rule stays (docs/support.md).
KNOWN_STRICT = {
    r"^.*\(fa2 on .* needs: fp16 or bf16 output\)": "fa2 writes FP8 outputs without a scale: over long contexts they underflow",
    r"^.*\(flex_attention on .* needs: fp16 or bf16 queries, or fp32 ones on a CPU\)": "no engine keeps its cache in fp32",
    r"^.*\(fa2 on .* needs: 16-bit queries over keys of their dtype or FP8": "no engine keeps a cache of another 16-bit dtype",
    r"^.*\((vllm|sglang)_triton on .* needs: keys and values of the query's dtype or": "no engine mixes dtypes of 16 bits",
    r"^.*\(cudnn on .* needs: a head_dim that is a multiple of 16 up to 256": "no model has other sizes; an H100 was right at 72",
    r"^.*\(trtllm-fmha-v2 on .* needs: head_dim 32, 48, 64, 80": "it has a kernel for 40 too, which no model has",
    r"^.*\(flash_attn_3(_sglang)? on .* needs: a latent of 512 \+ 64\)": "no model has another latent",
    r"^.*\(vllm_triton on .* needs: a page_size that is a multiple of 16\)": "vLLM refuses other pages",
    r"^.*\(vllm_triton on .* needs: equal head_dims of keys and values, of 32 or more\)": "vLLM refuses smaller heads",
    r"^.*\((vllm|sglang)_triton on .* needs: (fp16 or bf16 queries; )?output of the query's dtype\)": "no engine asks for it",
    r"^.*\(flex_attention on .* needs: keys, values and output of the query's dtype\)": "PyTorch converts the output",
}
