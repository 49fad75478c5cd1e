# `make help` explains the targets. All of them set up what they need.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Tests run side by side, one thread each: two torch threads that wait for each other are slower than one.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-hard demo-arc test test-slow chaos chaos-quick check format config bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything the project needs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## Train a small TRM on generated 9 x 9 Sudoku, solve and evaluate: about 5 minutes on 2 cores
	@sh scripts/demo.sh $(PY) sudoku_demo

demo-hard: $(READY) ## The same with harder puzzles (27 to 34 clues): about 12 minutes on 2 cores
	@sh scripts/demo.sh $(PY) sudoku_demo_hard

demo-arc: $(READY) ## Learn ten ARC tasks and score the votes over their augmentations: about 3 minutes on 2 cores
	@sh scripts/demo_arc.sh $(PY)

test: $(READY) ## Run the quick tests: a few minutes on 2 cores
	$(PYTEST)

test-slow: $(READY) ## Run the slow tests
	$(PYTEST) -m slow

chaos-quick: $(READY) ## Run the reliability programme and write docs/reliability.md: at most 10 minutes on 2 cores
	CHAOS_FORM=quick $(PYTEST) --dist worksteal -m chaos tests/chaos

chaos: $(READY) ## Run its long form: 3,000 kills, about 45 minutes
	CHAOS_FORM=long $(PYTEST) --dist worksteal -m chaos tests/chaos

check: $(READY) ## Check format, lint, types and shell scripts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright
	$(VENV)/bin/shellcheck -x scripts/*.sh .ci/run

format: $(READY) ## Format the code and fix what ruff can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

config: $(READY) ## Write the settings of the schemas into config/, with defaults and descriptions
	$(PY) -m scripts.write_config

bench: $(READY) ## Measure training, evaluation, data loading and optimizers on this machine
	$(PY) scripts/benchmark.py

clean: ## Remove caches and build products (not data, runs or .venv)
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
