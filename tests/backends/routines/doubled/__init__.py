"""A routine as small as one can be: the output is `times` the queries. `tests/kernels/routines` gives its folder to the project."""
