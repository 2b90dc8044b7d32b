"""Files of other benchmarks: FlashInfer's test lists and result files, vLLM's configs. One module for each format.

`import_config` chooses the module by the file's name. Nothing in a file is skipped silently: a `Remainder` collects what has no
counterpart here, by file, line and word.
"""
