# `make demo` and `make test` do all the set-up: a virtual environment in .venv, the package, and the job itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find src/pdecnn/kernels -name '*.cpp' -o -name '*.h')

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint types unit slow solver clean

demo: $(VENV)/.installed
	$(BIN)/python benchmarks/global_solver.py --quick

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest -m "not slow"

# Minutes more: every model through torch.compile, torch.export and ONNX.
slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# The solver against its peers, in seconds.
solver: $(VENV)/.installed
	$(BIN)/python benchmarks/global_solver.py --quick

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# The package is installed in place: Python files are read from src/, the native library is rebuilt when its sources change.
$(VENV)/.installed: $(VENV)/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
