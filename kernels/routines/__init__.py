"""One folder for each routine whose inputs are not keys and values alone; `docs/routines.md` says what it holds."""
