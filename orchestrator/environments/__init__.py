"""Python environments with other library versions: made once on each machine, and found again by a hash of their content."""
