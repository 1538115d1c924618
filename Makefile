# make demo and make test create their environment in .venv and need nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
unexport PYTHONDONTWRITEBYTECODE # with it, each process compiles PyTorch's modules again: 20 s instead of 8

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(BIN)/python scripts/demo.py

# Keep the order of the files. xdist would sort them by number of tests and start the slowest ones, with one test each, last.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v else \
	    f"error: $(PYTHON) is Python {v.major}.{v.minor}, but 3.11 or newer is needed. Run make PYTHON=python3.12 ...")'
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
