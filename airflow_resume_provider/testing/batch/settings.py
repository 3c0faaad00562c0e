"""Everything about the local Batch server that can be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """How the local Batch server behaves; the defaults are quick, the order of events is the cloud's.

    Args:
        queued_seconds: time a job stays QUEUED.
        max_queued_seconds: a job that is QUEUED for longer fails; two days in the cloud.
        scheduled_seconds: time a job stays SCHEDULED before its VMs boot.
        boot_seconds: time a VM takes until its first task runs.
        cleanup_seconds: time CANCELLATION_IN_PROGRESS and DELETION_IN_PROGRESS last at least.
        grace_seconds: time between the notice and the end of a preempted VM.
        signal_delay_seconds: time between the notice on the metadata server and
            SIGTERM, which on a real VM only comes once its shutdown has begun.
        stop_grace_seconds: time between SIGTERM and SIGKILL when a job is cancelled or deleted.
        background_grace_seconds: time background runnables live on after the foreground ended.
        report_timeout_seconds: silence of a VM after which its tasks fail with 50002.
        max_vms: VMs that run at the same time; further jobs wait, by priority.
        max_tasks_in_flight: default for `parallelism`.
        max_page_size: pages are never longer, whatever is asked for.
        max_attempt_seconds: limit on the run time of a job, 14 days in the cloud.
        project_number: the number that the metadata servers show.
        allowed_regions: when given, other locations are refused as unknown.
        secrets: values of Secret Manager versions, by resource name or by secret id.
        images: glob on image URI → {path inside the image: directory here}; the
            first one is also the working directory. For the process executor.
        environment: variables that every runnable gets, before the job's own.
    """

    queued_seconds: float = 0.05
    max_queued_seconds: float = 2 * 86400.0
    scheduled_seconds: float = 0.05
    boot_seconds: float = 0.0
    cleanup_seconds: float = 0.2
    grace_seconds: float = 30.0
    signal_delay_seconds: float = 0.1
    stop_grace_seconds: float = 5.0
    background_grace_seconds: float = 1.0
    report_timeout_seconds: float = 5.0
    max_vms: int = 64
    max_tasks_in_flight: int = 64
    max_page_size: int = 100
    max_attempt_seconds: float = 14 * 86400.0
    project_number: str = "123456789012"
    allowed_regions: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
