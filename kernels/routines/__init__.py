"""One folder for each routine whose inputs are not keys and values alone; `docs/adding_a_routine.md` says what it holds."""
