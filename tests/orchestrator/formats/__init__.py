"""Reading and writing the files of other benchmarks."""
