"""Worker side of a run: one process that owns one device and turns points into rows."""
