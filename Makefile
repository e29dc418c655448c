# `make help` lists what there is. The environment is built on first use, into VENV, from constraints.txt.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# One thread per process: small products on busy cores lose more in thread hand-overs than they gain.
export OMP_NUM_THREADS ?= 1
# Two processes, a file's tests in one of them (they share what is slow to make).
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile
READY := $(VENV)/.ready-$(shell cat setup.py constraints.txt | sha256sum | cut -c1-16)

.DEFAULT_GOAL := help
.PHONY: help install test test-quick gate demo bench suites figures lint format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(READY):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip setuptools wheel
	$(BIN)/pip install -q -c constraints.txt -e '.[all]'
	touch $@

# The environment may be shared by several clones: the package is always that of this one.
install: $(READY)  ## the environment, and this clone in it
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .

test: install  ## all tests: Triton's interpreter first, then everything else and every example in the documentation
	TRITON_INTERPRET=1 $(PYTEST) tests
	$(PYTEST) tests

test-quick: install  ## the operator's tests only, without the interpreter
	$(PYTEST) tests/kernels tests/eagc_ops

gate: install  ## compile every entry of the launch table for six GPU targets; fails on spills, fp64 or too much shared memory
	$(BIN)/eagc bench aot

demo: install  ## the main job: SimGCD with and without EAGC on a small dataset, end to end
	$(BIN)/eagc demo

bench: install  ## throughput and overhead tables, pictures: the short form, into out/bench
	$(BIN)/eagc bench all --quick -o out/bench

suites: install  ## the pytest-benchmark suites: absolute times, one contender after the other
	MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=4294967296 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
		$(BIN)/python -m pytest bench -q -p no:xdist -o python_files='suite_*.py'

figures: install  ## measure everything again (most of an hour), and write the figures of README and docs from the results
	$(BIN)/eagc bench all -o bench/results
	$(BIN)/python -m eagc_ops.bench.figures

lint: install  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## ruff, writing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## what tests and builds leave behind, not the environment
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache out
	find . -name __pycache__ -not -path './$(VENV)/*' -exec rm -rf {} +
