"""Files of other benchmarks: FlashInfer's test lists and result files, vLLM's configs. One module a format; `door` picks it.

What a file holds that has no counterpart here is named by file, line and word (`complaints`); nothing is left out in silence.
"""
