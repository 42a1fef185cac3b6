# Every command a user or CI types. `make demo` on a bare machine is enough.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo up down serve test test-servers bench lint lock licences

setup: $(STAMP)

# uv comes from the lock too, hash-checked; `uv pip sync` then removes whatever is not locked.
$(STAMP): requirements.lock pyproject.toml infra/sglang_plugins/pyproject.toml
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or 3.12 on PATH; install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "setup: $(PYTHON) cannot make an environment (Debian and Ubuntu have its venv in a package of its own)" >&2; exit 3; }
	awk '/^uv==/{p=1} p{print} p&&!/\\$$/{exit}' requirements.lock > $(VENV)/uv-pin.txt
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv-pin.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . -e infra/sglang_plugins
	touch $@

demo: setup
	$(BIN)/draftproof run configs/demo.yaml

# Prefect server, MLflow server, a worker, our deployments; all on 127.0.0.1.
up: setup
	$(BIN)/python infra/services.py up

down:
	$(BIN)/python infra/services.py down

# The worker of a machine or environment that serves for runs that train elsewhere (`serving.pool`). PREFECT_API_URL and
# MLFLOW_TRACKING_URI name the servers of the side that trains.
serve: setup
	$(BIN)/python infra/services.py serve

# Two at a time, a file each: half of the time goes by while servers start.
test: setup
	$(BIN)/python -m pytest tests --ignore=tests/servers --numprocesses=2 --dist=loadfile

test-servers: setup
	$(BIN)/python -m pytest tests/servers

# Performance, and what is found how soon, on the demo's drafter: PARTS="faults verify decode noise" chooses (noise: hours). Needs a quiet machine.
bench: setup
	$(BIN)/python -m tests.bench $(PARTS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# After a change of dependencies. Names, versions and hashes only: no address of a registry.
lock:
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header -o requirements.lock

licences: setup
	$(BIN)/python infra/licences.py
