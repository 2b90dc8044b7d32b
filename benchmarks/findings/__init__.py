"""Writes docs/findings.md and the pages of docs/evidence from the committed datasets: python -m benchmarks.findings

Every number of those pages, in tables and in sentences, is computed here. One module for each question.
"""
