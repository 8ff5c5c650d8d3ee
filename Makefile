# `make demo` and `make test` set up everything they need in .venv, with the versions of constraints.txt.
PYTHON ?= python3
TORCH ?= auto
PYTEST ?= -m pytest -n 3 --dist loadfile --max-worker-restart 0
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)

.PHONY: help demo test lint lock bench curves soak clean

help:
	@echo "make demo    set up, then study the bundled texts with all-MiniLM-L6-v2 (results in demo/)"
	@echo "make test    set up, then run all tests"
	@echo "make lint    set up, then ruff and the type checker"
	@echo "make lock    set up, then write constraints.txt anew from pyproject.toml (UPGRADE=--upgrade: newest versions)"
	@echo "make bench   set up, then the benchmarks"
	@echo "make curves  set up, then the loss against heads removed: MODELS='minilm ./bert' TEXTS=texts.jsonl.gz"
	@echo "make soak    set up, then disturb studies in every way, a quarter of an hour (HOW=--quick: less), into docs/soak.md"
	@echo "make clean   remove what these made"
	@echo "TORCH=cpu    with any of them: PyTorch's CPU build; TORCH=default: that of the package index (Linux: CUDA, 5 GB)"

$(VENV)/.installed: pyproject.toml constraints.txt scripts/setup_env.py
	$(PYTHON) scripts/setup_env.py --venv $(VENV) --torch $(TORCH)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PYTHON) scripts/setup_env.py --venv $(VENV) --torch $(TORCH) --dev
	touch $@

demo: $(VENV)/.installed
	$(BIN)/headscope study --output demo

test: $(VENV)/.installed-dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/get_chromium.sh
	$(BIN)/python $(PYTEST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock: $(VENV)/.installed-dev
	UV=$(BIN)/uv sh scripts/lock.sh write $(UPGRADE)

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/speed.py --growth
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/dtypes.py
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
