# One verb each. `make up ARGS="--port 9000 --detach"` passes flags on. Paths are relative: the folder may have spaces.

PYTHON ?= python3
ARGS ?=
LOCK_FLAGS = --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11

.DEFAULT_GOAL := help
.PHONY: help up down check test test-all seed docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

up: .venv/installed ## start the whole service on this machine (Ctrl-C stops it)
	@.venv/bin/steelyard up $(ARGS)

down: .venv/installed ## stop it; its data stay
	@.venv/bin/steelyard down $(ARGS)

check: .venv/installed-dev ## format, lint, types, import contracts, tidy, docs
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy --strict
	.venv/bin/lint-imports
	.venv/bin/python -m pytest -q tests/test_tidy.py tests/test_docs.py

# Two processes, a file of tests to each at a time: most of a test's time is waiting.
test: .venv/installed-dev ## the fast tests
	.venv/bin/python -m pytest -q -m "not slow and not peer" -n 2 --dist loadfile $(ARGS)

test-all: .venv/installed-dev ## every test
	.venv/bin/python -m pytest -q $(ARGS)

bench-%: .venv/installed-dev ## run the benchmark bench/%.py
	.venv/bin/python -m bench.$* $(ARGS)

seed: .venv/installed ## make the demo tenant, key and model in the running service
	@.venv/bin/python -m app.stack.seed $(ARGS)

docs: .venv/installed-dev ## compare the documentation with what it describes
	.venv/bin/python -m pytest -q tests/test_docs.py $(ARGS)

lock: ## write the lock files anew from pyproject.toml (needs uv)
	uv pip compile $(LOCK_FLAGS) pyproject.toml -o requirements.lock
	uv pip compile $(LOCK_FLAGS) --extra dev pyproject.toml -o requirements-dev.lock

clean: ## remove the environment and the data of the local stack
	rm -rf .venv .steelyard

.venv/installed: requirements.lock deploy/install.sh
	@sh deploy/install.sh "$(PYTHON)" requirements.lock
	@touch $@

.venv/installed-dev: requirements-dev.lock deploy/install.sh
	@sh deploy/install.sh "$(PYTHON)" requirements-dev.lock
	@touch .venv/installed $@
