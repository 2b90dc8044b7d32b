"""Questions to a dataset: SQL over its rows, noise, comparisons."""
