# `make` or `make help` lists the targets. Another Python: `make test PYTHON=python3.12`; one process: `JOBS=0`.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BENCH_ARGS ?= --lengths 32 128 512 --layers 1 6 9 --texts 1 16 --rivals --repeats 1

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
METADATA := setup.py pyproject.toml constraints.txt

# The pins hold for the isolated build environments of pip and of build, too; the second name is for pip >= 25.3.
# A relative path, because pip splits these variables at spaces.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test tutorials docs bench build clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

demo: $(VENV)/.text  ## explain a few texts with the model in the package, write an HTML report, say where it lies
	$(BIN)/captum-iba demo

test: $(VENV)/.dev  ## ruff, mypy --strict and pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict captum_iba
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

tutorials: $(VENV)/.dev  ## run the notebooks from beginning to end; what is stored in them stays as it is
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --nbmake --nbmake-timeout=600 \
	    --timeout=1800 --durations=0 tutorials

docs: $(VENV)/.docs  ## the documentation as HTML, in docs/_build/html; a warning is an error
	HF_HUB_OFFLINE=1 $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo "The start page is $(CURDIR)/docs/_build/html/index.html"

bench: $(VENV)/.text  ## time ours, the published procedure and rivals, in half an hour (BENCH_ARGS="--lengths 128")
	$(BIN)/python -m benchmarks.speed $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.where_time_goes
	$(BIN)/python -m benchmarks.counts

build: $(VENV)/.dev  ## wheel and sdist, in dist/
	rm -rf build dist
	$(BIN)/python -m build

clean:  ## remove the environment, build outputs and caches
	rm -rf $(VENV) build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is made once, and an extra installed again only when the metadata changes.
# The package is installed in place, so that changes to the code need no new installation.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.text: $(METADATA) | $(BIN)/python
	$(INSTALL) --editable '.[text]'
	@touch $@

$(VENV)/.dev: $(METADATA) | $(BIN)/python
	$(INSTALL) --editable '.[text,compare,ray,dev]'
	$(INSTALL) --no-deps --upgrade --target $(VENV)/vision torchvision  # apart: see tests/attr/vision_models.py
	@touch $@ $(VENV)/.text

$(VENV)/.docs: $(METADATA) | $(BIN)/python
	$(INSTALL) --editable '.[text,compare,docs]'
	@touch $@ $(VENV)/.text
