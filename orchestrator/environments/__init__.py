"""Python environments of other library versions: made once on each machine, found again by what they hold."""
