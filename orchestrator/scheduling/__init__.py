"""Driver side of a run: gives groups to workers, compiles kernel modules meanwhile, and shows progress."""
