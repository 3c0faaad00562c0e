"""Train on preemptible GPUs from Airflow and never think about preemption.

This module stays lazy: Airflow imports it during provider discovery and at
every DAG parse, long before anybody trains.
"""

__version__ = "0.1.0"
