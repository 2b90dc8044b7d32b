"""`export=vllm` and `export=sglang`: what a dataset says about an engine's attention flags, as text to paste.

`flags` has the engines' names, `shapes` reads the dataset, `choice` decides, `drafts` fills vLLM's table of draft lengths and
`text` writes it all down. A choice that the data do not support becomes a comment that says why, and no flag.
"""

from orchestrator.formats.engine_config.text import config_text

__all__ = ["config_text"]
