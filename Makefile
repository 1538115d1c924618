# make demo, make test: each makes its environment in .venv and does its whole job.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
unexport PYTHONDONTWRITEBYTECODE # set, each process would compile PyTorch's modules anew: 20 s instead of 8

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/python scripts/demo.py

# in their order: by number of tests the slowest files, of one test each, would come last
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v else \
	    f"error: Python 3.11 or newer is needed, and $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
ifdef UV
	$(UV) venv --quiet --python $(PYTHON) $(VENV)
else
	$(PYTHON) -m venv $(VENV)
endif

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(call install,.)
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml
	$(call install,.[dev])
	touch $@ $(VENV)/installed

ifdef UV
install = $(UV) pip install --python $(BIN)/python --editable '$(1)'
else
install = $(BIN)/python -m pip install --quiet --editable '$(1)'
endif

clean:
	rm -rf $(VENV) outputs/demo
