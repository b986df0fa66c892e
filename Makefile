# Everything runs in a virtual environment that is made on first use. Options for the installer, as
# for PyTorch's CPU build, go into PIP_ARGS: see docs/how-to/install.md.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# The demo needs two extras; developers need everything.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
UV := $(shell command -v uv)
# How to install into the environment that is named by its folder. Python compiles what it imports,
# and keeps it: pip would compile everything, which takes as long as the rest.
pip_in = $(if $(UV),$(UV) pip install --python $(1)/bin/python,$(1)/bin/python -m pip install \
	--disable-pip-version-check --no-compile) --quiet $(PIP_ARGS)
unexport PYTHONDONTWRITEBYTECODE
# The core is also tested with these, without torch: beyond it are tests that need more extras.
PYTHONS := 3.12 3.13
BEYOND := biomed docs experiments flare flower report simulation test_dependencies.py test_docs.py \
	test_examples.py test_explanation_figures.py test_notebooks.py test_package.py \
	test_peers.py test_readme.py test_same_loop.py test_studies.py
# Frameworks with an environment of their own, and how pytest runs there.
FRAMEWORKS := nvflare fedbiomed
# Each of these is made by one process: make check makes them while it checks types.
ENVIRONMENTS := $(PYTHONS:%=build/python%/.ready) $(FRAMEWORKS:%=build/%/.ready)
PYTEST := --strict-markers --import-mode=importlib --doctest-modules -p no:cacheprovider

.DEFAULT_GOAL := help
.PHONY: help demo flower-demo figures docs notebooks readme test check check-here check-pythons \
	lint test-frameworks format bench bench-peers dist conda-recipe hub clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call pip_in,$(VENV)) --constraint constraints.txt --editable '.[sim,report]'
	@touch $@

$(READY): $(DEMO)
	$(call pip_in,$(VENV)) --constraint constraints.txt --editable '.[all,dev]'
	@touch $@

demo: $(DEMO)  ## The paper's comparison on bundled digits, with a report: a minute
	$(BIN)/fedcohort run experiments/digits.toml
	@$(BIN)/fedcohort report >/dev/null
	@echo 'the report: runs/digits/report.html'

flower-demo: $(READY)  ## A Flower deployment on this machine, clients drawn by two designs: two minutes
	$(BIN)/python examples/flower-mnist/demo.py

figures: $(READY)  ## Redraw the figures of results/ from its tables, and those of the explanations
	$(BIN)/python docs/figures.py docs/explanation/figures
	$(BIN)/python tools/docs/architecture.py
	PYTHONPATH=tests $(BIN)/python tools/docs/report_picture.py
	for run in $$(dirname results/*/run.json results/*/*/run.json); do \
		$(BIN)/fedcohort report $$run --figures png || exit; done

docs: $(READY)  ## Build the documentation into site/, warnings are errors: half a minute
	$(BIN)/python tools/docs/made_pages.py
	$(BIN)/python -m sphinx -E -W --keep-going -q docs site
	@echo site/index.html

notebooks: $(READY)  ## Run the notebooks and keep what they show
	$(BIN)/python notebooks/refresh.py

readme: $(READY)  ## Run the README's commands and put what they print into it: two minutes
	$(BIN)/python tests/test_readme.py

test: $(READY)  ## Run the tests that take seconds, and doctests: five minutes
	$(BIN)/pytest -n 2 -m 'not slow' tests src tools

check: $(READY)  ## Everything: check-here, check-pythons, test-frameworks
	$(MAKE) --jobs 2 --output-sync lint $(ENVIRONMENTS)
	$(MAKE) check-here
	$(MAKE) check-pythons
	$(MAKE) test-frameworks

check-here: lint  ## Format, lint, types, all tests (slow ones too)
	$(BIN)/pytest -n 2 tests src tools

lint: $(READY)  ## Format, lint, types: a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check-pythons: $(PYTHONS:%=check-python-%)  ## The core's tests with Python 3.12 and 3.13: 4 minutes

check-python-%: build/python%/.ready
	@if [ -x build/python$*/bin/python ]; then \
		build/python$*/bin/python -m pytest -n 2 -m 'not slow' --hypothesis-profile=brief tests src \
			--doctest-ignore-import-errors $(BEYOND:%=--ignore=tests/%) \
			$(foreach room,experiments flower report simulation studies.py,--ignore=src/fedcohort/$(room)); \
	else echo 'Python $* is not installed here: the core is not tested with it'; fi

.PRECIOUS: build/python%/.ready
build/python%/.ready: pyproject.toml constraints.txt
	@rm -rf $(@D) && mkdir -p $(@D)
	@for python in python$* $$HOME/.pyenv/versions/$*.*/bin/python; do \
		if "$$python" -c 'import ensurepip' 2>/dev/null; then \
			"$$python" -m venv $(@D) && $(call pip_in,$(@D)) --constraint constraints.txt \
				--editable '.[scale,dp]' hypothesis packaging pytest pytest-xdist && break || exit; \
		fi; done
	@test ! -x $(@D)/bin/python || touch $@

test-frameworks: $(FRAMEWORKS:%=test-framework-%)  ## The plug-ins in frameworks of their own: NVIDIA FLARE, Fed-BioMed

test-framework-nvflare: TESTS := tests/flare src/fedcohort/nvflare
test-framework-fedbiomed: TESTS := tests/biomed src/fedcohort/fedbiomed
test-framework-fedbiomed: export PYTHONPATH := $(CURDIR)/tests/biomed/cpu_torch
test-framework-%: build/%/.ready
	@if [ -e build/$*/.missing ]; then \
		echo '$* cannot be installed here: its plug-in is not tested'; \
	else build/$*/bin/python -m pytest -n 2 $(TESTS) -o addopts='$(PYTEST)'; fi

# An environment for each: what one framework pins, another needs in another version.
.PRECIOUS: build/nvflare/.ready build/fedbiomed/.ready
build/nvflare/.ready: NEEDS := nvflare==2.9.0 torch scikit-learn --constraint constraints.txt
build/fedbiomed/.ready: NEEDS := 'fedbiomed[researcher,node]==6.4.1' torch==2.13.0
$(FRAMEWORKS:%=build/%/.ready): build/%/.ready: pyproject.toml constraints.txt
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(PYTHON) -m venv $(@D) && $(call pip_in,$(@D)) --editable '.[$*]' $(NEEDS) \
		hypothesis packaging pytest pytest-xdist || touch $(@D)/.missing
	@touch $@

format: $(READY)  ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Measure speed and memory
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/designs.py
	$(BIN)/python benchmarks/scale.py

bench-peers: $(READY)  ## The simulator beside pfl, fluke, FedJAX, Flower: 20 minutes, installs them
	PYTHONPATH=benchmarks $(BIN)/python -m peers \
		--out results/peers/figure1.json --page docs/explanation/speed.md

dist: $(READY)  ## Build the wheel and the sdist into dist/
	$(BIN)/python -m hatchling build

conda-recipe: dist  ## Write dist/recipe.yaml, for conda-forge
	$(BIN)/python tools/conda_recipe.py dist/fedcohort-$$($(BIN)/hatchling version).tar.gz >dist/recipe.yaml

hub:  ## Publish the Flower app on Flower Hub: needs flwr login
	$(BIN)/flwr app publish examples/flower-mnist

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist site
