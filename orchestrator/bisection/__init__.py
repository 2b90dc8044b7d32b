"""Finds the releases of a library between which something changed. Pure, except for the list of releases; measuring is passed in.

`releases` lists the releases between two. `evidence` reads one measurement of a release and the good one. `predicate` decides from
one or more of these whether a release is good or bad. `search` finds the first bad one, and `report` writes the report.
`orchestrator/commands/bisect.py` measures.
"""
