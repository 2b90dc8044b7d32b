from dataclasses import dataclass


@dataclass
class AttentionConfig:
    backend: str | None = None
    use_trtllm_attention: bool | None = None
