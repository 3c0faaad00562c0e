"""Airflow hooks for Google Cloud Batch."""
