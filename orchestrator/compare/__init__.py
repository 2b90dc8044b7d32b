"""What changed: two selections of rows, paired, judged by their samples and the noise floor. Reads Parquet alone."""
