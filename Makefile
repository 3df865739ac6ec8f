# `make demo` and `make test` require only make and a supported Python.

OUTPUT_DIR ?= outputs/demo
JOBS ?= 2
PROBLEMS ?= 1000
SEED ?= 0
MINUTES ?= 10

# `make test PYTHON=python3.12` uses a separate environment, and so does
# `make test PYTHON=python3.10 CONSTRAINTS=tests/oldest.txt`.
CONSTRAINTS ?=
VENV ?= .venv$(if $(PYTHON),-$(notdir $(PYTHON)))$(if $(CONSTRAINTS),-$(basename \
  $(notdir $(CONSTRAINTS))))
VENV := $(strip $(VENV))

# PYTHON defaults to the first supported interpreter that runs; a shim may exist
# and yet fail.
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10; do \
  if $$python -c '$(SUPPORTED)' >/dev/null 2>&1; then \
  echo $$python; break; fi; done)

RUN := $(VENV)/bin/python
export TF_CPP_MIN_LOG_LEVEL ?= 2

# Python stores compiled modules, even if the environment forbids it. Otherwise
# each process would compile 4,000 modules again to import TensorFlow.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo lint test test-all fuzz soak format notebooks docs wheel \
  release-check clean

help:  ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1:\2/p' $(MAKEFILE_LIST) \
	  | awk -F: '{ printf "%-16s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed-examples  ## Train three methods on MNIST, draw the plots
	@echo 'About 3 minutes on two cores. Messages about CUDA are harmless.'
	$(RUN) -m examples.paper.semisupervised_mnist --demo --output_dir='$(OUTPUT_DIR)'
	@ls '$(OUTPUT_DIR)'/*.png

# The types follow the newest NumPy; the oldest one has other annotations.
lint: $(VENV)/.installed-test  ## Check style, format and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(if $(CONSTRAINTS),,$(RUN) -m mypy)

test: lint  ## Check style, format and types, run the tests
	$(RUN) -m pytest -n $(JOBS) --dist worksteal

test-all: lint  ## Do the same with slow tests and all cases
	$(RUN) -m pytest -n $(JOBS) --dist worksteal -m 'slow or not slow'

fuzz: $(VENV)/.installed-test  ## Check PROBLEMS=1000 random problems from SEED=0 on
	$(RUN) tests/fuzz.py --problems=$(PROBLEMS) --seed=$(SEED) --jobs=$(JOBS)

soak: $(VENV)/.installed-test  ## Train, kill, damage, restart for MINUTES=10
	$(RUN) tests/soak.py --minutes=$(MINUTES) --seed=$(SEED)

format: $(VENV)/.installed-test  ## Format the code and fix what lint can fix
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# TensorFlow's messages about missing GPUs should not appear in a notebook.
QUIET := ['--IPKernelApp.capture_fd_output=False']

notebooks: $(VENV)/.installed-dev  ## Run all notebooks again, in full
	$(RUN) -m jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.timeout=3600 \
	  --ExecutePreprocessor.record_timing=False \
	  --ExecutePreprocessor.extra_arguments="$(QUIET)" colab/*.ipynb

docs: $(VENV)/.installed-test  ## Write the documentation site to build/docs/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

wheel: $(VENV)/.installed-test  ## Build a wheel into dist/
	rm -rf build
	$(RUN) -m build --wheel

release-check: $(VENV)/.installed-dev  ## Build the package, check it, run its tests
	rm -rf build dist
	$(RUN) -m build
	$(RUN) -m twine check --strict dist/*
	$(RUN) -m venv build/venv
	build/venv/bin/python -m pip install -qq --disable-pip-version-check \
	  "$$(ls dist/*.whl)[test]"
	build/venv/bin/pytest -n $(JOBS) --dist worksteal

clean:  ## Remove builds and caches; keep the environment and outputs/
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find tfp_rb tests examples -name __pycache__ -type d -prune \
	  -exec rm -rf {} + 2>/dev/null || true

# `.installed-x` records that the package is installed with the extra `x`. The
# file appears only if the installation succeeds, and its time is the start of
# the installation, so that an edit of setup.py in the meantime counts as newer.
# The extra `test` contains `examples`. The editable mode is `compat`, because
# otherwise a script next to the clone would import the clone's folder.
$(VENV)/.installed-%: setup.py
	@{ test -f '$(VENV)/pyvenv.cfg' && $(RUN) -m pip --version; } \
	  >/dev/null 2>&1 || { \
	  $(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { \
	    echo 'Python 3.10, 3.11 or 3.12 is needed and was not found. Install' \
	      'one, or name it: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }; \
	  echo 'Creating $(VENV) with $(PYTHON).'; \
	  rm -f '$(VENV)'/bin/python*; \
	  $(PYTHON) -m venv '$(VENV)'; }
	@echo 'Installing tfp_rb[$*] into $(VENV), which may take some minutes.'
	@rm -f $@ && touch $@.started
	@$(RUN) -m pip install -qq --no-compile --disable-pip-version-check \
	  $(if $(CONSTRAINTS),--constraint '$(CONSTRAINTS)') \
	  --config-settings editable_mode=compat --editable '.[$*]'
	@mv $@.started $@
	@test '$*' != test || cp -p $@ $(VENV)/.installed-examples
