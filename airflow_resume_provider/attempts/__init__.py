"""Pure decisions about attempts: verdict, budget, placement, decide. No I/O, no Airflow."""
