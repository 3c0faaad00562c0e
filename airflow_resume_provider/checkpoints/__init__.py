"""The format of checkpoints and the choice among them. No Airflow, no Google Cloud Batch."""
