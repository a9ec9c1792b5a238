# Everything runs in .venv, made on first use with the versions of constraints.txt. Another Python: make test PYTHON=python3.12
# pip's own settings hold: where a CPU build of torch is found, for example (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo test test-eval bench lint

help:
	@echo "make demo        make .venv, install, and watch the default model complete and infill code"
	@echo "make test        run every test that this machine can run"
	@echo "make test-eval   install lm-eval (half a gigabyte) and run the tests of its adapter, which make test skips in part"
	@echo "make bench       install other engines (llama.cpp is compiled, some minutes) and measure speed beside them"
	@echo "make lint        check style, format and types"

demo: .venv/.core
	$(BIN)/daguerre demo

# A process for each core, and one thread in each: the tests' tensors are small, and threads that wait for a busy core make
# them many times slower.
test: export OMP_NUM_THREADS ?= 1
test: export HF_HUB_OFFLINE := 1
test: .venv/.dev
	$(BIN)/python -m pytest -q --numprocesses auto --dist worksteal

test-eval: export OMP_NUM_THREADS ?= 1
test-eval: export HF_HUB_OFFLINE := 1
test-eval: .venv/.eval
	$(BIN)/python -m pytest -q tests/evals/test_lm_eval.py

bench: .venv/.bench
	$(BIN)/daguerre bench --out benchmarks/results/speed.json
	$(BIN)/python docs/write_figures.py

lint: .venv/.dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	echo "Daguerre needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is not: run make again with PYTHON=python3.12, say" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# dlmserve asks for transformers 4, and the tests need only its step engine, which works with 5.
# hatchling first: with --no-build-isolation the build, too, uses the pinned versions.
.venv/.core: .venv/.made pyproject.toml constraints.txt
	@echo "Installing into .venv (some minutes the first time)"
	$(PIP) hatchling
	$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	@echo "Installing into .venv (some minutes the first time)"
	$(PIP) hatchling
	$(PIP) --no-build-isolation --editable ".[dev]"
	$(PIP) --no-deps dlmserve
	@touch .venv/.core $@

.venv/.eval: .venv/.dev
	$(PIP) --no-build-isolation --editable ".[dev,eval]"
	@touch $@

.venv/.bench: .venv/.dev
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(PIP) llama-cpp-python
	$(PIP) --no-build-isolation --editable ".[dev,bench]"
	@touch $@
