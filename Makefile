# `make help` explains the targets. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Tests run in parallel with one thread each, because torch threads that wait for each other are slow.
# Python may write compiled files, including the tests' assertions: then collecting takes half as long the next time.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(WORKERS) --dist loadfile

# On a machine with a GPU: `make gpu PY=python3` uses this Python instead of .venv, and WHEELS=FOLDER installs
# missing packages from wheels, without a network.
MODELS ?= $(patsubst zoo/%/MANIFEST.json,zoo:%,$(wildcard zoo/sudoku*/MANIFEST.json))
MINUTES ?= 9
GPU_READY := $(if $(filter $(VENV)/%,$(PY)),$(READY))
GPU_WHEELS = $(if $(WHEELS),@$(PY) -m pip install --quiet --no-index --no-deps --upgrade --target gpu/wheels $(WHEELS)/*.whl)
GPU := env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH="$(CURDIR):$(CURDIR)/gpu/wheels:$$PYTHONPATH" $(PY)
GPU_TESTS := -m pytest -m gpu -v --tb=short -p no:cacheprovider tests/parity/test_traces.py tests/gpu
GPU_CASES := -m scripts.benchmark --case hrm --case trm-mlp
TRAIN = $(GPU) pretrain.py logger=jsonl
REHEARSED_RUN = $(TRAIN) experiment=hrm_sudoku_extreme_1k_laptop checkpoint_path=gpu/rehearsal/train device=cpu compile=false \
	num_threads=1 data_path=tests/parity/published_format/data global_batch_size=1 log_interval=1 arch.hidden_size=32 \
	arch.num_heads=2 evaluators=[]

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-extreme demo-arc demo-maze pictures notebook test test-slow chaos chaos-quick check check-style check-types check-shell check-forms wheel release format docs config bench weight gpu gpu-tests gpu-compiled gpu-eager gpu-train gpu-rehearsal clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with all that the project and its tests need

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("$(PYTHON) is older than Python 3.11: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## Train a small model on generated 9 x 9 Sudokus, solve and evaluate: about 9 minutes on 2 cores
	@sh scripts/demo.sh $(PY) dec_sudoku_demo

demo-extreme: $(READY) ## Train a model that strikes candidates, and solve hard Sudokus by search: about 12 minutes on 2 cores
	@sh scripts/demo_extreme.sh $(PY)

demo-arc: $(READY) ## Train on ten ARC tasks and score the votes over their augmentations, then learn a new one: about 5 minutes on 2 cores
	@sh scripts/demo_arc.sh $(PY)

demo-maze: $(READY) ## Train a cellular automaton on mazes of 15 x 15, and draw its waves: about 9 minutes on one core
	@sh scripts/demo_maze.sh $(PY)

zoo-%: $(READY) ## Make a model of the zoo again, by its recipe in zoo/recipes.yaml, for example: make zoo-sudoku-4x4
	$(PY) -m scripts.make_zoo $*

# The first puzzle takes the demo's model several steps, the second takes the lattice several guesses.
pictures: $(READY) ## Make the docs' pictures, except the viewer's, from the runs of demo and demo-extreme (needs Chromium)
	$(PY) -m scripts.solve checkpoint=checkpoints/sudoku-demo steps=10 animate=docs/pictures/thinking.gif \
		puzzle=2.....51..4..1...9...5..7......7.694..6.9.....3..6.2....58.....6.....8.3.82.379.1
	$(PY) -m scripts.solve checkpoint=checkpoints/lattice-demo search.chains=1 animate=docs/pictures/deducing.gif \
		puzzle=.2...6...78.........53.7.6...2.8......37...94.....2.7..3....1.7...49....45.......
	$(PY) -m scripts.report checkpoints/sudoku-demo
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1200,1150 --virtual-time-budget=20000 \
		--screenshot=docs/pictures/report.png "file://$(CURDIR)/checkpoints/sudoku-demo/report.html"

notebook: $(READY) ## Run examples/quickstart.ipynb again and store its outputs
	cd examples && ../$(VENV)/bin/jupyter execute --inplace quickstart.ipynb

test: $(READY) ## Run the quick tests: a few minutes on 2 cores
	$(PYTEST)

test-slow: $(READY) ## Run the slow tests
	$(PYTEST) -m slow

chaos-quick: $(READY) ## Run the reliability tests and write their table to docs/reliability.md: at most 10 minutes on 2 cores
	CHAOS_FORM=quick $(PYTEST) --dist worksteal -m chaos tests/chaos

chaos: $(READY) ## Run the long form of the reliability tests: 3,000 kills, about 45 minutes
	CHAOS_FORM=long $(PYTEST) --dist worksteal -m chaos tests/chaos

check: check-style check-types check-shell check-forms ## Check format, lint, types, shell scripts, and .github/

check-style: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

check-types: $(READY)
	$(PY) -m pyright

check-shell: $(READY)
	$(VENV)/bin/shellcheck -x scripts/*.sh .ci/run

# The schemas are in the package: this needs no network.
FORM = $(VENV)/bin/check-jsonschema --quiet --builtin-schema
check-forms: $(READY)
	$(FORM) vendor.github-workflows .github/workflows/*.yml
	$(FORM) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(FORM) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(FORM) vendor.dependabot .github/dependabot.yml
	$(FORM) vendor.citation-file-format CITATION.cff
	$(VENV)/bin/pre-commit validate-config .pre-commit-config.yaml

format: $(READY) ## Format the code and fix what ruff can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# The zoo's models are exported again only after a change; runs always, because they may go on.
ZOO_FILES = $(patsubst zoo:%,build/zoo/%.onnx,$(filter zoo:%,$(MODELS)))
build/zoo/%.onnx: zoo/%/MANIFEST.json $(wildcard apps/export/*.py) | $(READY)
	@mkdir -p $(@D)
	$(PY) -m scripts.export zoo:$* $@ --single-step

docs: $(READY) $(ZOO_FILES) ## Build the site from docs/ into build/site; MODELS are the checkpoints of its page "Try it"
	@[ $(words $(MODELS)) = $(words $(sort $(notdir $(subst :,/,$(MODELS))))) ] \
		|| { echo "MODELS: each must end in a name of its own" >&2; exit 2; }
	@rm -rf build/models && mkdir -p build/models
	@for model in $(filter-out zoo:%,$(MODELS)); do \
		$(PY) -m scripts.export "$$model" "build/models/$${model##*/}.onnx" --single-step || exit 1; done
	@for file in $(ZOO_FILES); do cp "$$file" build/models || exit 1; done
	@npm install --prefix examples/browser --no-audit --no-fund >/dev/null 2>&1 || true
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -f apps/site/mkdocs.yml

wheel: $(READY) ## Build wheel and sdist in build/dist; in an empty environment the wheel must solve a puzzle
	rm -rf build/dist build/empty
	$(PY) -m build --outdir build/dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build/dist/*.whl
	cd build/empty && bin/recursive-reasoning solve \
		puzzle=53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79

release: wheel docs ## Collect wheel, sdist, zoo and browser page in build/release; TAG=v1.2.3 must be this version
	@[ -z "$$TAG" ] || [ "$$TAG" = "v$$($(PY) -c 'import importlib.metadata as m; print(m.version("recursive-reasoning"))')" ] \
		|| { echo "the tag $$TAG is not the version in pyproject.toml" >&2; exit 2; }
	@[ -f build/site/try/models.json ] || { echo "the site has no page Try it: make docs says why" >&2; exit 2; }
	rm -rf build/release && mkdir build/release
	cp build/dist/* build/release
	tar -czf build/release/zoo.tar.gz zoo
	tar -czf build/release/try.tar.gz -C build/site try

config: $(READY) ## Update config/ with the settings, defaults and descriptions of the schemas
	$(PY) -m scripts.write_config

bench: $(READY) ## Measure training, evaluation, data loading and optimizers on this machine
	$(PY) scripts/benchmark.py

weight: $(READY) ## Count lines by room, long functions, hard turns of phrase, and the lines that a training step runs
	@$(PY) -m scripts.weight

gpu: $(GPU_READY) ## Run tests and benchmarks on an NVIDIA GPU, each part for at most MINUTES=9; results in gpu/
	$(GPU_WHEELS)
	@mkdir -p gpu
	@$(MAKE) --no-print-directory --keep-going gpu-tests gpu-compiled gpu-eager

gpu-tests:
	timeout -k 60 $(MINUTES)m $(GPU) $(GPU_TESTS) --junitxml=gpu/tests.xml

gpu-compiled gpu-eager: gpu-%:
	timeout -k 60 $(MINUTES)m $(GPU) $(GPU_CASES) --seconds 2 device=cuda \
		compile=$(if $(filter compiled,$*),true,false) --output gpu/$*.json $(SETTINGS)

gpu-train: $(GPU_READY) ## Train EXPERIMENT=NAME for MINUTES=9 and save; the same command continues
	$(GPU_WHEELS)
	timeout --kill-after=120 --preserve-status $(MINUTES)m \
		$(TRAIN) experiment=$(EXPERIMENT) checkpoint_path=gpu/train/$(EXPERIMENT) $(SETTINGS) || [ $$? -eq 75 ]

gpu-rehearsal: $(GPU_READY) ## Run all commands of gpu and gpu-train on a CPU with tiny sizes
	@rm -rf gpu/rehearsal
	@mkdir -p gpu/rehearsal
	@GPU_REHEARSAL=1 TORCHDYNAMO_DISABLE=1 $(GPU) $(GPU_TESTS) --junitxml=gpu/rehearsal/tests.xml
	@$(GPU) $(GPU_CASES) --seconds 0.1 device=cpu compile=false num_threads=1 global_batch_size=4 arch.hidden_size=32 \
		arch.num_heads=2 --output gpu/rehearsal/eager.json
	@$(REHEARSED_RUN) max_steps=1
	@$(REHEARSED_RUN) max_steps=2

clean: ## Remove caches and build products (not data, runs or .venv)
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
