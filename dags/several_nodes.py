"""Train on several VMs with torchrun and torch.distributed.checkpoint.

One Batch job with one task for each node; together the nodes make one
checkpoint, through the store alone. `launch.sh` in the image starts the
processes of a node.
"""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_resume_provider.operators.train import ResumableTrainOperator

POLL_SECONDS = float(os.environ.get("RESUME_EXAMPLE_POLL", "10"))


@dag(schedule=None, catchup=False, tags=["resume", "example"], doc_md=__doc__)
def several_nodes() -> None:
    """Train on two nodes with eight GPUs each."""
    ResumableTrainOperator(
        task_id="train",
        project_id="{{ var.value.get('resume_project', 'local-project') }}",
        region="{{ var.value.get('resume_region', 'us-central1') }}",
        image="{{ var.value.get('resume_several_nodes_image', 'several-nodes:latest') }}",
        command=["bash", "/opt/trainer/launch.sh"],
        checkpoint_root="{{ var.value.get('resume_root', 'gs://resume/checkpoints') }}",
        service_account="{{ var.value.get('resume_service_account', '') }}",
        container_options="--network host",
        format="dcp",
        machine_type="a2-highgpu-8g",
        accelerator_type="nvidia-tesla-a100",
        accelerator_count=8,
        job={
            "task_groups": [
                {
                    "task_count": 2,
                    "parallelism": 2,
                    "task_count_per_node": 1,
                    "require_hosts_file": True,
                    "permissive_ssh": True,
                }
            ]
        },
        poll_interval=POLL_SECONDS,
    )


dag_object = several_nodes()
