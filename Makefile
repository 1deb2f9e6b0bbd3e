# Each target creates .venv if needed. Only python3 (3.11 or newer) must be installed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Always write bytecode: tests start many interpreters.
export PYTHONDONTWRITEBYTECODE :=

READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
LOCK_DESK := requirements/desk.txt
LOCK_SERVER := requirements/server.txt
LOCK_WORKER := requirements/worker.txt
LOCK_DEV := requirements/dev.txt
LOCK_NODE := requirements/node.txt

.DEFAULT_GOAL := help
.PHONY: help install up test test-all keep-databases soak compat oracle contracts check docs schema mutants bench dist \
	smoke images chart lock audit clean

# loadfile: the tests of a file share fixtures. Four processes for two cores: tests often wait for other processes.
PYTEST := $(BIN)/pytest -n 4 --dist loadfile

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY_DEV) ## create .venv with everything that the other targets need

# A desk also starts without the web app: its page says how to build it.
up: $(READY) ## start ComfyRelay on this machine
	@$(STEP) "Prepare the page" $(BIN)/python ui/build.py || true
	@$(BIN)/comfyrelay up $(ARGS)

test: $(READY_DEV) ## run unit and integration tests and the journeys of tests/system (ARGS="-k lease" passes options to pytest)
	$(BIN)/python ui/build.py
	$(BIN)/python ui/build.py test
	$(PYTEST) -m "not system or journey" --ignore tests/soak $(ARGS)

test-all: $(READY_DEV) ## run all tests with exhaustive parameters
	$(BIN)/python ui/build.py
	$(BIN)/python ui/build.py test
	$(PYTEST) --full $(ARGS)

keep-databases: $(READY_DEV) ## keep databases of this version for the upgrade tests of later ones
	$(BIN)/python -W ignore -m tests.kept

soak: $(READY_DEV) ## run the whole system and inject faults by plan (ARGS="--seeds 1000")
	$(BIN)/python -W ignore -m tests.soak $(ARGS)

compat: $(READY_DEV) ## run real versions of ComfyUI and print what works with each (ARGS="0.28.0" tries one)
	$(BIN)/python -m tests.compat $(ARGS)

oracle: $(READY_DEV) ## compare conversions of all templates with the editor's exports (ARGS="--frontend 1.58.1" takes another)
	$(BIN)/python -m tests.compat.oracle --write $(ARGS)

contracts: $(READY_DEV) ## check responses against OpenAPI files of Comfy Org (ARGS="--comfy-contract FILE", --comfyui-contract)
	$(BIN)/pytest -rs tests/system/server/test_contracts.py $(ARGS)

check: $(READY_DEV) ## check style, formatting, types, import rules, English and the documentation site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 src
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py
	$(BIN)/python ui/openapi.py --check
	$(BIN)/python ui/build.py check
	$(BIN)/python ui/build.py workflows
	$(SITE)

# Material for MkDocs announces its successor with every build.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
docs: $(READY_DEV) ## build the documentation site into site/, and fail on a broken link
	$(SITE)

schema: $(READY_DEV) ## update the API schema of the web app after a change of the API
	$(BIN)/python ui/openapi.py

mutants: $(READY_DEV) ## break each rule on purpose; a test must fail
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(READY_DEV) ## run the benchmarks
	$(BIN)/python -m bench $(ARGS)

dist: $(READY_DEV) ## build the sdist, the wheel and the SBOM into dist/
	$(BIN)/python ui/build.py
	$(BIN)/python tools/dist.py
	$(BIN)/python tools/sbom.py

smoke: ## install the wheel of dist/ in a new environment and make the first picture (ARGS=uvx or ARGS=pipx for these)
	$(PYTHON) tools/smoke.py dist/*.whl $(ARGS)

images: ## build the images from the wheel of dist/ and start each one (needs Docker or Podman)
	$(PYTHON) tools/images.py $(ARGS)

chart: ## pack the Helm chart into dist/, with the version of the wheel there
	$(PYTHON) tools/chart.py

# Versions for every supported Python and system, with file hashes and without index URLs.
COMPILE := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
lock: $(READY_DEV) ## update all lock files to the newest allowed versions
	$(BIN)/$(COMPILE) --all-extras --group build --group dev --group bench --output-file $(LOCK_DEV)
	$(BIN)/$(COMPILE) --extra desk --group build --constraint $(LOCK_DEV) --output-file $(LOCK_DESK)
	$(BIN)/$(COMPILE) --extra server --extra media --extra s3 --extra aws --extra kubernetes --extra alerts --extra traces \
		--constraint $(LOCK_DEV) --output-file $(LOCK_SERVER)
	$(BIN)/$(COMPILE) --extra traces --constraint $(LOCK_DEV) --output-file $(LOCK_WORKER)
	$(BIN)/$(subst pyproject.toml,--group node,$(COMPILE)) --output-file $(LOCK_NODE)

audit: $(READY_DEV) ## check the pinned versions against public advisories (exit code 3: the service is unreachable)
	$(BIN)/python requirements/audit.py $(ARGS)

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .soak .compat site \
		ui/node_modules src/comfyrelay/web/app
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Prints one line for each step, and the whole output of a step that fails.
STEP := $(PYTHON) tools/step.py
# Only pinned packages are installed: the project is built with the pinned hatchling.
ENVIRONMENT := test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# Every dependency is pinned, so pip need not resolve any.
PACKAGES := $(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement
PROJECT := $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .

$(READY): pyproject.toml $(LOCK_DESK)
	@$(STEP) "Create $(VENV)" sh -c '$(ENVIRONMENT)'
	@$(STEP) "Install the packages of $(LOCK_DESK)" $(PACKAGES) $(LOCK_DESK)
	@$(STEP) "Install ComfyRelay" $(PROJECT)
	@touch $@

# The developer packages include those of a desk. Without --compile: most modules are never imported. Four downloads in
# parallel. pip and setuptools come last, when no other pip runs.
$(READY_DEV): pyproject.toml $(LOCK_DEV)
	$(ENVIRONMENT)
	awk '/^[A-Za-z0-9]/ { part = /^(pip|setuptools)==/ ? "last" : ++n % 4 } /^[^#]/ { print > ("$(VENV)/part-" part ".txt") }' \
		$(LOCK_DEV)
	printf '%s\n' 0 1 2 3 | xargs -P 4 -I @PART@ $(PACKAGES) $(VENV)/part-@PART@.txt --no-compile
	$(PACKAGES) $(VENV)/part-last.txt --no-compile
	$(PROJECT)
	touch $(READY) $@
