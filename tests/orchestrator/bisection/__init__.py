"""The search for the release where something changed."""
