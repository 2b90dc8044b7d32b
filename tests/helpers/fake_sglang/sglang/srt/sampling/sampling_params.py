from dataclasses import dataclass


@dataclass
class SamplingParams:
    max_new_tokens: int
    ignore_eos: bool
    temperature: float

    def normalize(self, tokenizer: object) -> None:
        self.normalized = True
