# `make train` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread per process: two OpenMP threads collapse as soon as anything else uses a core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help train test lint docs bench parity clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,envs,lora,data,math]'
	@touch $(READY)

train: $(READY)  ## train a tiny model on addition, from scratch, in two to three minutes
	$(BIN)/grouprl train addition

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n 2

lint: $(READY)  ## format check, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)  ## generate docs/methods from the cards
	$(BIN)/python scripts/generate_docs.py

bench: $(READY)  ## measure speed against TRL and the machine's matrix products
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt trl
	$(BIN)/python bench/run.py

clean:  ## remove the environments and caches (runs stay)
	rm -rf $(VENV) .venv-trl .venv-verl .pytest_cache .mypy_cache .ruff_cache .hypothesis
