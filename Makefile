# One word per task. Each task makes .venv by itself; a machine needs only python3 (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests start many interpreters: what the first one compiles serves all others, wherever that is switched off too.
export PYTHONDONTWRITEBYTECODE :=

READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
LOCK_DESK := requirements/desk.txt
LOCK_SERVER := requirements/server.txt
LOCK_WORKER := requirements/worker.txt
LOCK_DEV := requirements/dev.txt
LOCK_NODE := requirements/node.txt

.DEFAULT_GOAL := help
.PHONY: help install up test long soak durations check docs mutants bench lock audit clean schema

# Whole files, so that what the tests of a file share is made once, and in the order of tests/durations.py. Four at a
# time on two cores, for much of what they do is to wait for processes.
PYTEST := $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY_DEV) ## make .venv with all that the other tasks need

# A desk starts without the web app, too: its page says then what to do.
up: $(READY) ## start ComfyRelay on this machine
	-$(BIN)/python ui/build.py
	$(BIN)/comfyrelay up $(ARGS)

test: $(READY_DEV) ## run the tests of every change (ARGS="-k lease" forwards options to pytest)
	$(BIN)/python ui/build.py
	$(BIN)/python ui/build.py test
	$(PYTEST) $(ARGS)

durations: $(READY_DEV) ## run all tests, and write down which take longest: those are left for make long
	$(PYTEST) -m "" --write-durations $(ARGS)

long: $(READY_DEV) ## run the tests that take long: all on PostgreSQL, all crashes, long random walks, thousands of jobs
	$(PYTEST) -m long $(ARGS)

soak: $(READY_DEV) ## crash the whole system by plan (ARGS="--seeds 1000"), and hold it to what it promises
	$(BIN)/python -W ignore -m tests.soak $(ARGS)

check: $(READY_DEV) ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python ui/openapi.py --check
	$(BIN)/python ui/build.py check
	$(SITE)

# Material for MkDocs announces its successor with every build.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
docs: $(READY_DEV) ## build the documentation site into site/, and fail on a broken link
	$(BIN)/python docs/tools/guarantee_index.py
	$(SITE)

schema: $(READY_DEV) ## write down what the web app may ask for, after a change of the API
	$(BIN)/python ui/openapi.py

mutants: $(READY_DEV) ## break each rule on purpose: a test must notice
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(READY_DEV) ## measure, next to other queues
	$(BIN)/python -m bench $(ARGS)

# Versions for every supported Python and system, with the hashes of their files; where they come from is not written down.
COMPILE := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
lock: $(READY_DEV) ## choose the newest versions of what is installed, and write them down
	$(BIN)/$(COMPILE) --all-extras --group build --group dev --group bench --output-file $(LOCK_DEV)
	$(BIN)/$(COMPILE) --extra desk --group build --constraint $(LOCK_DEV) --output-file $(LOCK_DESK)
	$(BIN)/$(COMPILE) --extra server --extra media --extra s3 --extra aws --extra kubernetes --group build \
		--constraint $(LOCK_DEV) --output-file $(LOCK_SERVER)
	$(BIN)/$(COMPILE) --group build --constraint $(LOCK_DEV) --output-file $(LOCK_WORKER)
	$(BIN)/$(subst pyproject.toml,--group node,$(COMPILE)) --output-file $(LOCK_NODE)

audit: $(READY_DEV) ## hold what is pinned against public advisories (exit code 3 where they cannot be reached)
	$(BIN)/python requirements/audit.py $(ARGS)

clean: ## remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .soak site \
		ui/node_modules src/comfyrelay/web/app
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Only what the lock names is installed: the project is built with its hatchling.
ENVIRONMENT := test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# All that is needed is pinned: pip need not look for what else is.
PACKAGES := $(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement
PROJECT := $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .

$(READY): pyproject.toml $(LOCK_DESK)
	$(ENVIRONMENT)
	$(PACKAGES) $(LOCK_DESK)
	$(PROJECT)
	touch $@

# What developers have holds all that a desk needs. What is imported is compiled then; most of it never is. Four at a
# time: for much of it each of them waits for the network. pip itself comes last, while nobody runs it.
$(READY_DEV): pyproject.toml $(LOCK_DEV)
	$(ENVIRONMENT)
	awk '/^[A-Za-z0-9]/ { part = /^(pip|setuptools)==/ ? "last" : ++n % 4 } /^[^#]/ { print > ("$(VENV)/part-" part ".txt") }' \
		$(LOCK_DEV)
	printf '%s\n' 0 1 2 3 | xargs -P 4 -I @PART@ $(PACKAGES) $(VENV)/part-@PART@.txt --no-compile
	$(PACKAGES) $(VENV)/part-last.txt --no-compile
	$(PROJECT)
	touch $(READY) $@
