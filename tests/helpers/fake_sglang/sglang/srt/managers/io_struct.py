from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class TokenizedGenerateReqInput:
    input_text: str
    input_ids: Sequence[int]
    mm_inputs: object
    sampling_params: Any
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: object
    stream: bool
    rid: str
    input_embeds: object
    token_type_ids: object
    computed: int = 0  # the stand-in's own: tokens that are in the cache


@dataclass
class AbortReq:
    abort_all: bool = False
