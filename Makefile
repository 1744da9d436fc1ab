# quickstart   watch a model learn              test       run the tests
# test-fast    formulas and laws, a minute      test-lowest steps and trainer on the oldest libraries
# check        format, lint, types, layers      env        only make the environment
# gpu-check    laws, speed, memory on a GPU     pages      write docs/api.md and settings.md from the code
# docs         the site, in site/: every link is checked
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
LOWEST = .venv-lowest
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu"
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false
# Tiny models are slower on several threads; tests run side by side instead.

.PHONY: quickstart test test-fast test-lowest check gpu-check pages docs format env clean

quickstart: $(STAMP)
	$(BIN)/covey quickstart

test: $(STAMP)
	$(PYTEST) -n 2 --durations 25

# No process is started, no model is trained.
test-fast: $(STAMP)
	$(PYTEST) -n 2 tests/laws tests/score tests/update tests/kernels tests/rewards/rules tests/architecture/test_numbers.py

# pyproject's floors, each of them; tests/architecture holds the two files together. What is tried is what meets torch,
# transformers, accelerate, datasets and peft: formulas, kills and settings come out the same with any version.
test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 -m "not slow and not gpu and not any_version" \
		tests/sample tests/update tests/kernels tests/trainer

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints-lowest.txt)"
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-lowest.txt \
		--editable . hypothesis pytest pytest-xdist
	touch $@

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# PYTHON as it is: the environment of `make env` has the CPU build of torch.
gpu-check:
	$(PYTHON) benchmarks/gpu_check.py

pages: $(STAMP)
	$(BIN)/python tools/api.py
	$(BIN)/python tools/settings_page.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

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
	$(BIN)/python tools/torchvision_over_cpu.py
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache build site *.egg-info
