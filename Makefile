# Both `make demo` and `make check` do all of their own set-up on a bare machine
# with Python 3.11 or later and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What failed while others took the processor from it is run once more, alone and
# visibly; it has to pass then. Without a recorded failure nothing is run, which fails.
ALONE  := { echo "Once more, alone, what has failed:"; $(BIN)/pytest --last-failed --last-failed-no-failures none; }

.PHONY: install demo check lint types test e2e bench clean

install: $(VENV)/.installed

# Only wheels: nothing here ever needs a compiler.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Installing into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --only-binary :all: --no-binary airflow-resume-provider --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' \
		|| { echo "Installation failed, see above. Only wheels are used, no compiler." >&2; exit 1; }
	@touch $@

demo: install
	@$(BIN)/python -m airflow_resume_provider.testing.demo $(ARGS)

check: lint types test e2e

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Side by side, more of them than there are cores, since most wait most of the time; then what starts a real Airflow.
test: install
	$(BIN)/pytest tests/unit tests/integration tests/docs -n 4 --dist loadfile --durations=15 || $(ALONE)

e2e: install
	$(BIN)/pytest tests/e2e -n 2 --dist loadfile --durations=15 || $(ALONE)

bench: install
	$(BIN)/python -m tests.benchmarks

# Further environments (frameworks, Airflow versions) live in their own fragments.
-include *.mk

clean:
	rm -rf $(VENV) .venv-* demo build dist site
