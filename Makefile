# Both `make demo` and `make check` do all of their own set-up on a bare machine
# with Python 3.11 or later and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: install demo check lint types test bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/python -m airflow_resume_provider.testing.demo

check: lint types test

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

test: install
	$(BIN)/pytest

bench: install
	$(BIN)/python -m tests.benchmarks

# Further environments (frameworks, Airflow versions) live in their own fragments.
-include *.mk

clean:
	rm -rf $(VENV) .venv-* demo build dist site
