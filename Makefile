# `make help` lists what there is. The environment is built on first use, into VENV, from constraints.txt.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# The environment of `make test-lowest`, and its tests: the operator, and the parts of training in which every package
# is at work (settings, images, backbones, accuracy, pages, runs of all methods, the demo, the examples).
LOWEST ?= .venv-lowest
STUDY ?= runs/study
INTO ?= docs
BASE ?= HEAD~1
LOWEST_TESTS := tests/kernels tests/eagc_ops ptx_machine/tests tests/docs/test_examples.py \
	$(addprefix tests/training/,config data models analysis report engine/test_method_runs.py) $(addprefix tests/evidence/,studies test_weights.py)
# One thread per process: small products on busy cores lose more in thread hand-overs than they gain.
export OMP_NUM_THREADS ?= 1
# Two processes; the tests of a file stay in one of them, because they share what is slow to make.
PYTEST := -m pytest -q -n 2 --dist loadfile --durations=15
# Coverage costs a third more CPU time.
COVERAGE := --cov=eagc_ops --cov=ptx_machine --cov-report=term:skip-covered
READY := $(VENV)/.ready-$(shell cat setup.py constraints.txt | sha256sum | cut -c1-16)

.DEFAULT_GOAL := help
.PHONY: help install tree test coverage test-quick faults test-lowest bits gate demo evidence bench suites figures docs release hub types lint format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(READY):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip setuptools wheel
	$(BIN)/pip install -q -c constraints.txt -e '.[all]' -e ./ptx_machine
	touch $@

# The environment may be shared by several clones: the package is always that of this one.
install: $(READY)  ## the environment, and this clone in it
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e . -e ./ptx_machine

# setup.py maps kernels/, training/ and the other rooms into eagc_ops. Tools that read sources without importing them follow
# folders, so they get the package as a tree of links.
tree:
	@rm -rf build/tree && mkdir -p build/tree/eagc_ops
	@ln -s $(CURDIR)/eagc_ops/* $(addprefix $(CURDIR)/,kernels training discovery evidence bench) build/tree/eagc_ops/
	@mkdir build/tree/ptx_machine && ln -s $(CURDIR)/ptx_machine/*.py $(CURDIR)/ptx_machine/machine build/tree/ptx_machine/

test: install tree  ## all tests: Triton's interpreter first, then everything else; prints the slowest
	TRITON_INTERPRET=1 $(BIN)/python $(PYTEST) tests
	$(BIN)/python $(PYTEST) tests ptx_machine/tests

coverage: install tree  ## the tests without the interpreter, and the lines that none of them reaches
	$(BIN)/python $(PYTEST) $(COVERAGE) tests ptx_machine/tests

test-quick: install  ## the operator's tests only, without the interpreter
	$(BIN)/python $(PYTEST) tests/kernels tests/eagc_ops ptx_machine/tests

faults: install  ## the whole fault suite: kills, full disks, broken files, wrong command lines and loops; prints what was lost
	EAGC_FAULTS=all $(BIN)/python $(PYTEST) tests/faults tests/eagc_ops/test_hints.py tests/test_other_systems.py

test-lowest:  ## operator, training and examples with the lowest versions of setup.py, in an environment of their own (5 GB)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install -q --upgrade pip 'setuptools>=68' wheel
	$(LOWEST)/bin/pip install -q -c constraints-lowest.txt -e '.[test,examples]' -e ./ptx_machine
	TRITON_INTERPRET=1 $(LOWEST)/bin/python $(PYTEST) $(LOWEST_TESTS)
	$(LOWEST)/bin/python $(PYTEST) $(LOWEST_TESTS)

bits: install  ## whether runs of the four methods have the bits that they had at the commit BASE (HEAD~1)
	$(BIN)/python .ci/bits.py $(BASE)

gate: install  ## compile every entry of the launch table for six GPU targets; fails on spills, repeated products, fp64 or too much shared memory
	$(BIN)/eagc bench aot

demo: install  ## the main job: SimGCD with and without EAGC on a small data set, end to end
	$(BIN)/eagc demo

evidence:  ## what the study in STUDY (runs/study) has shown so far, into INTO (docs)
	mkdir -p $(INTO)/figures
	cp $(STUDY)/study.json $(STUDY)/evidence.md $(STUDY)/evidence.csv $(INTO)/
	cp $(STUDY)/figures/*.svg $(INTO)/figures/

bench: install  ## throughput and overhead tables, pictures: the short form, into out/bench
	$(BIN)/eagc bench all --quick -o out/bench

suites: install  ## the pytest-benchmark suites: absolute times, one contender after the other
	MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=4294967296 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
		$(BIN)/python -m pytest bench -q -p no:xdist -o python_files='suite_*.py'

figures: install  ## measure everything again (most of an hour), and write the figures of README and docs from the results
	$(BIN)/eagc bench all -o bench/results
	$(BIN)/eagc bench aot --triangle -o bench/results/triangle.json
	$(BIN)/python -m eagc_ops.bench.figures

docs: install tree  ## the documentation, into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

release: install  ## sdist and wheel of both packages, into dist/, installed and tried in a new environment (5 GB)
	$(BIN)/python .ci/release.py

hub:  ## operator and kernels as a repository of the Kernel Hub, into build/hub; nothing is uploaded
	$(PYTHON) .ci/hub.py

types: install tree  ## mypy, strict on eagc_ops/, kernels/ and ptx_machine/, with its defaults on the other rooms
	cd build/tree && $(abspath $(BIN))/python -m mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

lint: types  ## ruff, mypy, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

format: install  ## ruff, writing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## what tests and builds leave behind, not the environments
	rm -rf build dist site *.egg-info ptx_machine/build ptx_machine/*.egg-info .pytest_cache .ruff_cache .mypy_cache .coverage out
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './$(LOWEST)/*' -exec rm -rf {} +
