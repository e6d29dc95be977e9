# Needs Python and make; everything else goes into .venv. A second call installs nothing unless pyproject.toml changed.
#
## make quickstart   install mrsearch and run its first experiment      ARGS="--json" passes arguments
## make test         the default test suite, some minutes               ARGS="-k credit"
## make test-slow    learning and end-to-end tests
## make check        format, lint, type-check and test, before a commit
## make lint         the same without changing or testing anything
## make bench        speed and memory, each against a peer
## make clean        remove .venv and all caches
##
## PYTHON=python3.12 chooses the interpreter, TORCH="torch==2.13.0" the build of PyTorch.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
WORKERS := -n auto --maxprocesses=8 --dist=worksteal

.PHONY: help quickstart test test-slow check lint bench clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^## \{0,1\}//p' Makefile

# Torch comes first and alone, so that nothing installed after it pulls in another build.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install "$(TORCH)"
	@touch $@

$(VENV)/.base: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install -e ".[dev]"
	@touch $@ $(VENV)/.base

quickstart: $(VENV)/.base
	$(BIN)/mrsearch quickstart $(ARGS)

test: $(VENV)/.dev
	$(PYTEST) $(WORKERS) --timeout=120 $(ARGS)

# pytest exits 5 when it finds no test; a selection by ARGS may leave none here.
test-slow: $(VENV)/.dev
	$(PYTEST) -m slow --timeout=2400 $(ARGS) || [ $$? -eq 5 ]

check: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/mypy
	$(PYTEST) $(WORKERS) --timeout=120 $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(VENV)/.dev
	@set -e; for script in $(sort $(wildcard bench/bench_*.py)); do \
		echo "== $$script"; $(BIN)/python $$script $(ARGS); \
	done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
