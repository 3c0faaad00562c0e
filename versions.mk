# The unit and integration suites on each supported Airflow, every one in an environment of its own.
# Their own deprecations are not ours, so those warnings are let pass.
# `make versions`, or one: `make version-3.1`. 3.3 is what `make test` runs.
AIRFLOWS := 3.1 3.2
# What they were released with; later ones break them.
PINS_3.1 :=
PINS_3.2 := 'fastapi<0.137' 'cadwyn<8'

.PHONY: versions $(AIRFLOWS:%=version-%)
.PRECIOUS: .venv-airflow-%/.installed

versions: $(AIRFLOWS:%=version-%) test

$(AIRFLOWS:%=version-%): version-%: .venv-airflow-%/.installed
	AIRFLOW_HOME=$(CURDIR)/.venv-airflow-$*/home .venv-airflow-$*/bin/python -m pytest -n 4 --dist loadfile \
		-W ignore::FutureWarning -W ignore::DeprecationWarning \
		tests/unit tests/integration

.venv-airflow-%/.installed: pyproject.toml $(VENV)/.installed
	@echo "Installing Airflow $* into .venv-airflow-$*"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-airflow-$*
	@$(BIN)/uv pip install --quiet --only-binary :all: --no-binary airflow-resume-provider \
		--python .venv-airflow-$*/bin/python 'apache-airflow==$*.*' $(PINS_$*) --editable '.[dev]'
	@touch $@
