"""The dashboard: a dataset as one self-contained page, served on loopback or written to a file. Reads Parquet and nothing else."""
