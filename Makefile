# One word per task. Each task makes .venv by itself; a machine needs only python3 (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench

.DEFAULT_GOAL := help
.PHONY: help up test check twins bench clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(READY) ## start ComfyRelay on this machine
	$(BIN)/comfyrelay up $(ARGS)

test: $(READY_DEV) ## run the tests (ARGS="-k lease" forwards options to pytest)
	$(BIN)/pytest -n 2 $(ARGS)

# The benches are checked too, so what they import must be there.
check: $(READY_BENCH) ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

twins: $(READY_DEV) ## break each rule on purpose: a test must notice
	$(BIN)/python -m tests.twins $(ARGS)

bench: $(READY_BENCH) ## measure, next to other queues
	$(BIN)/python -m bench $(ARGS)

clean: ## remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# pip learned --group in 25.1, and the pip that python3 brings is often older.
$(READY_DEV): $(READY)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

$(READY_BENCH): $(READY_DEV)
	$(BIN)/python -m pip install --quiet --group bench
	touch $@
