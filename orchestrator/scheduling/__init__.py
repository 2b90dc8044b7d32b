"""Driver side of a run: which worker gets what, what is compiled meanwhile, and what a person sees."""
