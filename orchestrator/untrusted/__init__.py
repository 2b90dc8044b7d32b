"""Files and text that somebody else may have written: opened without following links, bounded, escaped when shown."""
