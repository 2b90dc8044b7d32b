"""Is an answer right: the reference in fp32, and how far rounding may lead from it."""
