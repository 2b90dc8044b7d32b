"""What is measured: problems, inputs, masks, oracle, adapters. Knows torch; never Hydra, Ray, pandas or Parquet."""
