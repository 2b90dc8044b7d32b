# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
ARGS   ?=

.PHONY: run test test-browser test-slurm test-s3 browser docs site versions format install

run: install  ## the main job; more keys: make run ARGS="cluster=ray cluster.address=HOST:6379"
	$(BIN)/python -m orchestrator +sweep=specdec_long_ctx $(ARGS)

test: $(VENV)/.dev  ## every check that needs no GPU; a part of the tests: make test ARGS=tests/kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Types and layers are checked while the tests run, since these wait a lot.
	@# Hundreds of processes import the project: each would compile it if the shell forbids Python to keep compiled modules.
	@# Freed memory stays with its process: clearing it for each tensor again took a seventh of the tests of kernels.
	export PYTHONDONTWRITEBYTECODE=; { $(BIN)/mypy && $(BIN)/lint-imports; } & checks=$$!; \
		MALLOC_MMAP_THRESHOLD_=268435456 MALLOC_TRIM_THRESHOLD_=1073741824 \
		OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=4 $(ARGS); tests=$$?; \
		wait $$checks && exit $$tests

test-browser: browser  ## the dashboard in Debian's chromium
	$(BIN)/pytest -m browser tests/browser $(ARGS)

test-slurm: $(VENV)/.dev  ## docs/slurm.sbatch on a real Slurm of simulated machines
	@command -v slurmctld >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y slurmctld slurmd slurm-client munge iproute2 >/dev/null; } \
		|| { echo "There is no Slurm, and it could not be installed; as root, type: apt-get install -y slurmctld slurmd slurm-client munge"; exit 2; }
	$(BIN)/pytest -m slurm tests/slurm $(ARGS)

test-s3: $(VENV)/.dev  ## a dataset in an object store, on a second S3 server: s3rver, written by others than the one in `make test`
	@command -v npm >/dev/null || { echo "There is no npm; as root, type: apt-get install -y npm"; exit 2; }
	npm install --silent --no-fund --no-audit --prefix $(VENV)/s3rver s3rver@3.7.1
	S3RVER=$(VENV)/s3rver/node_modules/.bin/s3rver $(BIN)/pytest tests/orchestrator/storage/test_s3.py $(ARGS)

browser: $(VENV)/.browser  ## what test-browser needs
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y chromium; } \
		|| { echo "There is no chromium, and it could not be installed; as root, type: apt-get install -y chromium"; exit 2; }

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(VENV)/.run

$(VENV)/.run: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; type make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	@# For its interpreter, on a CPU. Apart, so that no other test has it; the release that torch 2.13 asks for.
	$(PIP) --no-deps --upgrade --target $(VENV)/triton triton==3.7.1
	touch $@

$(VENV)/.browser: $(VENV)/.dev requirements-browser.txt
	$(PIP) -r requirements-browser.txt
	touch $@

docs: install  ## every generated page: findings, datasets, docs/support.md, docs/columns.md
	$(BIN)/python -m tools.docs

site: install  ## public/: the committed datasets and the documents as static pages
	$(BIN)/python -m orchestrator mode=site results.path=results document=docs export=public

versions: install  ## docs/versions.md: which releases of FlashInfer take which call; three minutes
	$(BIN)/python tools/releases.py write
