"""Sparse MLA (DeepSeek's DSA): attention over the tokens that an indexer chose for each query token."""
