"""One file for each family of backends. A file is found by being here; it names its adapters in `ADAPTERS`."""
