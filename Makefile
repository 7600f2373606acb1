# `make` sets up what is missing and runs the default sweep to its report; `make test` sets up what
# is missing and passes the tests. Both can be interrupted and run again.
PYTHON ?= python3
CORES ?= $(shell nproc)
VENV := .venv
BIN := $(VENV)/bin
REPORT := results/quickstart/report.html
NATIVE := $(wildcard native/trace/* native/simulator/*)

.PHONY: report setup test test-all test-frameworks test-sanitized fuzz test-torch29 zoo lint format bench clean
.DEFAULT_GOAL := report

report: setup
	@echo "== running the quickstart sweep (resumes where it stopped)"
	@$(BIN)/snakemake --cores $(CORES) $(SNAKEMAKE_ARGS)
	@echo "== report: $(REPORT)"

setup: $(VENV)/.installed
	@$(BIN)/maya emulator build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Maya needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@command -v c++ >/dev/null || { echo "Maya needs a C++20 compiler (g++ 11+ or clang 14+), e.g. apt-get install g++"; exit 1; }
	@echo "== creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Half-installed packages are completed by running pip again; the stamp comes last.
$(VENV)/.packages: requirements.lock | $(VENV)/bin/python
	@echo "== installing the locked packages (PyTorch for CUDA among them: 6 GB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.packages pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "== building and installing maya-sim"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

test: setup
	@$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: setup
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-frameworks: setup
	@$(BIN)/python -m pytest tests/frameworks $(PYTEST_ARGS)

# One training step of every model; ZOO_ARGS="--match 'timm/resnet*'" runs some of them.
zoo: setup
	@$(BIN)/python zoo/run.py $(ZOO_ARGS)

# The emulator, the decoder and the engine under the address and undefined-behaviour sanitizers of the compiler.
SANITIZED := build/sanitized
SANITIZERS := LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
test-sanitized: setup
	@MAYA_SANITIZE=1 $(BIN)/python -m pytest tests/native $(PYTEST_ARGS)
	@$(BIN)/cmake -S . -B $(SANITIZED) -DMAYA_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	@$(BIN)/cmake --build $(SANITIZED)
	@$(SANITIZERS) MAYA_SANITIZED_MODULES=$(SANITIZED) $(BIN)/python -m pytest tests/unit/test_trace_reader.py \
		tests/unit/test_damaged_traces.py tests/unit/test_simulator_*.py $(PYTEST_ARGS)

# Longer runs of the random tests that `make test` runs for some seconds; MAYA_FUZZ_* say how long.
fuzz: setup
	@MAYA_FUZZ_CALLS=200,3000 MAYA_FUZZ_TRACES=50,200 $(BIN)/python -m pytest tests/native/test_random_calls.py \
		tests/unit/test_damaged_traces.py $(PYTEST_ARGS)

# The other generation of PyTorch, in an environment of its own.
TORCH29 := .venv-torch29
$(TORCH29)/.installed: requirements-torch29.lock pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "== installing PyTorch 2.9 (CUDA 12.8) and Maya into $(TORCH29)"
	@$(PYTHON) -m venv $(TORCH29)
	@$(TORCH29)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch29.lock
	@$(TORCH29)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		--config-settings=build-dir=build/torch29 --editable .
	@touch $@

test-torch29: $(TORCH29)/.installed
	@$(TORCH29)/bin/python -m pytest -m "not slow" tests/native tests/unit tests/frameworks/test_ddp.py \
		tests/frameworks/test_fsdp.py tests/workflow/test_predict.py $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h')

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h')

bench: setup
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

clean:
	rm -rf build results .snakemake
