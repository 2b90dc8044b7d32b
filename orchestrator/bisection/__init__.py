"""Between which releases of a library something changed. Pure but for the list of releases: what measures is given.

`releases` lists the releases between two, `evidence` says what one measurement of a release beside the good one shows, `predicate`
decides from one or more of them whether a release is good or bad, `search` finds the first bad one, and `report` writes it down.
`orchestrator/commands/bisect.py` measures.
"""
