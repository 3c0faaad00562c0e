"""The operator that a DAG author writes."""
