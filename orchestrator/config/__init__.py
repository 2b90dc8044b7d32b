"""The configuration as immutable, typed data, made from what Hydra composed. Unknown keys are errors."""
