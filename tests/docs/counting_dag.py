"""A DAG to be tested; shown in the documentation."""

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

# A trainer that counts to five, one checkpoint per step.
SCRIPT = """
import os, pathlib, time
directory = pathlib.Path(os.environ["RESUME_DIR"])
for step in range(int(os.environ["RESUME_STEP"]) + 1, 6):
    new = directory / f"checkpoint-{step}.tmp"
    new.mkdir(parents=True)
    (new / "state.txt").write_text(str(step))
    new.rename(directory / f"checkpoint-{step}")
    time.sleep(0.5)
"""


@dag(schedule=None)
def counting():
    ResumableTrainOperator(
        task_id="count",
        project_id="local-project",
        region="us-central1",
        image="counting:1",
        command=["python", "-c", SCRIPT],
        checkpoint_root="gs://resume/checkpoints",
        poll_interval=0.5,
    )
