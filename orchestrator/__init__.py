"""From a sweep to rows to decisions. Knows Hydra, Ray and Parquet; knows kernels only through their contract."""
