# quickstart  watch a model learn          test   run the tests
# check       format, lint, types, layers  env    only make the environment
# gpu-check   laws, speed, memory on a GPU
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false
# Tiny models are slower on several threads; tests run side by side instead.

.PHONY: quickstart test check gpu-check format env clean

quickstart: $(STAMP)
	$(BIN)/covey quickstart

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# PYTHON as it is: the environment of `make env` has the CPU build of torch.
gpu-check:
	$(PYTHON) benchmarks/gpu_check.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(STAMP)

# torch comes first and alone: a wider request could pick a CUDA build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Covey needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
