# The wheel in fresh environments: beside an existing Airflow, and without one, on each Python that is here.
.PHONY: packaging

packaging: install
	$(BIN)/pytest tests/install
