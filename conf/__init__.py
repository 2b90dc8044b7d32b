"""What to run, where, how carefully: YAML alone, composed by Hydra."""
