# The frameworks that trainings are written with, in an environment without Airflow.
# By pip and not by uv: pip also takes wheels from the local directories that it is configured with, such as a CPU build of PyTorch.
FRAMEWORKS := .venv-frameworks

.PHONY: frameworks

check: frameworks

frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks -n 2 --dist worksteal || \
		{ echo "Once more, alone, what has failed:"; $(FRAMEWORKS)/bin/python -m pytest tests/frameworks --last-failed --last-failed-no-failures none; }

$(FRAMEWORKS)/.installed: pyproject.toml tests/frameworks/constraints-frameworks.txt tests/frameworks/requirements.txt
	@echo "Installing the frameworks into $(FRAMEWORKS)"
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint tests/frameworks/constraints-frameworks.txt --editable . --requirement tests/frameworks/requirements.txt
	@touch $@
