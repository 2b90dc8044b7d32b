"""Between a person and Hydra: the arguments before it reads them, the files that it reads, and its errors in our words."""
