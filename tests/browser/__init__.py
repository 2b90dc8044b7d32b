"""The dashboard in a real browser: `make test-browser`."""
