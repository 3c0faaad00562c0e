"""The operator that a DAG author writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk import BaseOperator

from airflow_resume_provider.batch.retrying import ERROR_BUDGET
from airflow_resume_provider.links.train import CheckpointLink, JobLink, LogsLink
from airflow_resume_provider.operators.plan import plan

if TYPE_CHECKING:
    from airflow_resume_provider.operators.conductor import Conductor, Step
    from airflow_resume_provider.operators.plan import Plan
    from airflow_resume_provider.operators.submission import Shown, Waiting
    from airflow_resume_provider.triggers.train import TrainAttemptTrigger


T = TypeVar("T")


class ResumableTrainOperator(BaseOperator):
    """
    Trains on Google Cloud Batch until the training is finished, whatever is preempted on the way.

    Each attempt is a job of its own. A preempted attempt is followed by the next
    one inside the same try, which restores the newest committed checkpoint; an
    attempt that a lost worker left behind is adopted, never submitted twice.

    Publishes the XComs ``checkpoint_uri``, ``checkpoint``, ``resumed_from``, ``attempts``
    and ``job_name`` with every attempt, and returns a summary: ``checkpoint_uri``, ``step``,
    ``metrics``, ``attempts``, ``preemptions``, ``seconds_trained``, ``seconds_lost``.

    :param project_id: the project that the jobs run in.
    :param region: the region that the jobs run in.
    :param image: the training's image. It brings ``resume-run`` and no ENTRYPOINT, unless
        ``runtime_image`` is given.
    :param command: the training's command, as a list of arguments.
    :param checkpoint_root: ``gs://`` (or ``file://``) directory for checkpoints; each task instance
        gets a directory of its own below it.
    :param runtime_image: image with ``resume-run``; ``image`` then stays unmodified and is run beside it.
    :param machine_type: machine type of the VM.
    :param accelerator_type: GPU type; drivers are installed by Batch.
    :param accelerator_count: number of GPUs.
    :param provisioning_model: SPOT, STANDARD (on-demand), FLEX_START, RESERVATION_BOUND or PREEMPTIBLE.
    :param zones: zones of the region that a VM may come from; any when empty.
    :param placements: the ladder, a list of dictionaries that change ``region``, ``zones``,
        ``machine_type``, ``accelerator_type``, ``accelerator_count``, ``provisioning_model``,
        ``attempts`` (attempts in a row on that rung) or ``queue_timeout`` (seconds to wait for a VM).
    :param placement_policy: ``sticky`` stays on the rung that worked, ``return`` tries the first again.
    :param queue_timeout: seconds that a job may wait for a VM before the next rung is taken.
    :param env: environment of the training; not for secrets, it is shown in the UI.
    :param secret_env: environment from Secret Manager, ``{"NAME": "projects/P/secrets/S/versions/V"}``.
    :param labels: labels of the jobs.
    :param job: overrides, deeply merged into the Batch job; checked against its schema.
    :param format: how checkpoints look on disk, see the container contract.
    :param max_preemptions: how many preemptions in a row without a new checkpoint are repeated inside
        the try; ``None`` is no limit.
    :param max_infrastructure_failures: the same for failures of the platform.
    :param max_attempts_without_progress: after so many attempts without a new checkpoint the task fails.
    :param reset_budgets_on_progress: ``False`` counts over the whole try instead.
    :param quick_death_seconds: an error within so many seconds may be the checkpoint's fault; after two in
        a row the checkpoint is put in quarantine.
    :param on_preemption: ``resubmit`` repeats inside the try; ``retry`` spends one of Airflow's retries,
        at once where Airflow can (3.3).
    :param resume: ``auto``, ``never`` (each try starts afresh) or ``required`` (an error without a
        checkpoint).
    :param resume_from: URI of a checkpoint to start from while the training has none of its own.
    :param on_clear: ``resume`` or ``fresh``: what clearing the task means.
    :param timeout: seconds that the training may take in one try, over all its attempts.
    :param stall_timeout: seconds without a new checkpoint after which an attempt is replaced.
    :param max_run_seconds: Batch's own limit for one attempt.
    :param finished_when: glob below the checkpoint directory whose existence means finished.
    :param stop_signal: what the training gets on a preemption notice.
    :param grace_seconds: how long it may take after that.
    :param keep_last: how many checkpoints are kept; 0 keeps all.
    :param strict: refuse to resume a training whose image, command or environment has changed.
    :param shm_size: size of ``/dev/shm``, for data loaders.
    :param container_options: further options of ``docker run``.
    :param volumes: further volumes of the training's container.
    :param boot_disk_gb: size of the boot disk, which holds images and checkpoints.
    :param service_account: what the VM runs as.
    :param network: the VM's network.
    :param subnetwork: the VM's subnetwork.
    :param external_ip: whether the VM has an external address.
    :param priority: the job's priority, 0 to 99.
    :param install_gpu_drivers: whether Batch installs drivers for the GPUs.
    :param gcp_conn_id: the Google Cloud connection.
    :param impersonation_chain: service account, or chain of them, to impersonate.
    :param poll_interval: seconds between two looks at the job.
    :param error_budget: seconds that the Batch API may fail while the task waits before the try ends (the
        job runs on and is adopted by the next).
    :param not_found_grace: seconds that a job may not be found before it counts as gone.
    :param deferrable: ``False`` waits in the worker, for installations without a triggerer.
    :param trigger_min_seconds: shortest life of a trigger; default 8, or ``RESUME_TRIGGER_MIN_SECONDS``.
    """

    template_fields: Sequence[str] = (
        "project_id",
        "region",
        "image",
        "command",
        "checkpoint_root",
        "runtime_image",
        "machine_type",
        "accelerator_type",
        "provisioning_model",
        "zones",
        "placements",
        "env",
        "secret_env",
        "labels",
        "job",
        "format",
        "resume",
        "resume_from",
        "on_clear",
        "finished_when",
        "service_account",
        "network",
        "subnetwork",
        "gcp_conn_id",
        "impersonation_chain",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "json",
        "env": "json",
        "job": "json",
        "labels": "json",
        "placements": "json",
    }
    operator_extra_links = (JobLink(), LogsLink(), CheckpointLink())
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        project_id: str,
        region: str,
        image: str,
        command: Sequence[str],
        checkpoint_root: str,
        runtime_image: str | None = None,
        machine_type: str = "e2-standard-4",
        accelerator_type: str | None = None,
        accelerator_count: int = 0,
        provisioning_model: str = "SPOT",
        zones: Sequence[str] | None = None,
        placements: Sequence[Mapping[str, Any]] | None = None,
        placement_policy: str = "sticky",
        queue_timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        secret_env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        job: Mapping[str, Any] | None = None,
        format: str = "auto",
        max_preemptions: int | None = None,
        max_infrastructure_failures: int | None = 5,
        max_attempts_without_progress: int | None = 20,
        reset_budgets_on_progress: bool = True,
        quick_death_seconds: float = 120.0,
        on_preemption: str = "resubmit",
        resume: str = "auto",
        resume_from: str | None = None,
        on_clear: str = "resume",
        timeout: float | None = None,
        stall_timeout: float | None = None,
        max_run_seconds: float | None = None,
        finished_when: str | None = None,
        stop_signal: str = "TERM",
        grace_seconds: float | None = None,
        keep_last: int = 0,
        strict: bool = False,
        shm_size: str | None = None,
        container_options: str | None = None,
        volumes: Sequence[str] | None = None,
        boot_disk_gb: int | None = None,
        service_account: str | None = None,
        network: str | None = None,
        subnetwork: str | None = None,
        external_ip: bool = True,
        priority: int = 0,
        install_gpu_drivers: bool = True,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval: float = 10.0,
        error_budget: float = ERROR_BUDGET,
        not_found_grace: float = 300.0,
        deferrable: bool = True,
        trigger_min_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.project_id = project_id
        self.region = region
        self.image = image
        self.command = command
        self.checkpoint_root = checkpoint_root
        self.runtime_image = runtime_image
        self.machine_type = machine_type
        self.accelerator_type = accelerator_type
        self.accelerator_count = accelerator_count
        self.provisioning_model = provisioning_model
        self.zones = zones
        self.placements = placements
        self.placement_policy = placement_policy
        self.queue_timeout = queue_timeout
        self.env = env
        self.secret_env = secret_env
        self.labels = labels
        self.job = job
        self.format = format
        self.max_preemptions = max_preemptions
        self.max_infrastructure_failures = max_infrastructure_failures
        self.max_attempts_without_progress = max_attempts_without_progress
        self.reset_budgets_on_progress = reset_budgets_on_progress
        self.quick_death_seconds = quick_death_seconds
        self.on_preemption = on_preemption
        self.resume = resume
        self.resume_from = resume_from
        self.on_clear = on_clear
        self.timeout = timeout
        self.stall_timeout = stall_timeout
        self.max_run_seconds = max_run_seconds
        self.finished_when = finished_when
        self.stop_signal = stop_signal
        self.grace_seconds = grace_seconds
        self.keep_last = keep_last
        self.strict = strict
        self.shm_size = shm_size
        self.container_options = container_options
        self.volumes = volumes
        self.boot_disk_gb = boot_disk_gb
        self.service_account = service_account
        self.network = network
        self.subnetwork = subnetwork
        self.external_ip = external_ip
        self.priority = priority
        self.install_gpu_drivers = install_gpu_drivers
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.poll_interval = poll_interval
        self.error_budget = error_budget
        self.not_found_grace = not_found_grace
        self.deferrable = deferrable
        self.trigger_min_seconds = trigger_min_seconds
        self.carried: dict[str, Any] = {}  # what a subclass wants back in later legs of the try
        self._conductor: Conductor | None = None
        self._check()
        self._repeat_preemptions_at_once()

    def _check(self) -> Plan:
        """Refuse what can never work; templated values wait until they are rendered."""
        return plan(self)

    def _repeat_preemptions_at_once(self) -> None:
        if self.on_preemption != "retry":
            return
        from airflow_resume_provider.triggers.versions import has_retry_policy

        if has_retry_policy():
            from airflow_resume_provider.operators.retrying import PreemptionRetryPolicy

            self.retry_policy = PreemptionRetryPolicy(getattr(self, "retry_policy", None))

    @property
    def shown(self) -> Shown | None:
        """What this leg's links point to by now."""
        return self._conductor.shown if self._conductor is not None else None

    def _conducting(self, context: Any) -> Conductor:
        from airflow_resume_provider.hooks.batch import ResumableBatchHook
        from airflow_resume_provider.operators.conductor import Conductor

        hook = ResumableBatchHook(self.gcp_conn_id, self.impersonation_chain)
        self._conductor = Conductor(self._check(), hook, context, carried=self.carried)
        return self._conductor

    def execute(self, context: Any) -> Any:
        """Adopt, finish or submit; then wait."""
        from airflow_resume_provider.triggers.versions import missing

        for words in missing(context, on_preemption=self.on_preemption):
            self.log.warning("This Airflow is older than 3.3: %s.", words)
        if self.on_preemption == "retry" and not self.retries:
            self.log.warning('on_preemption="retry" with retries=0: the first preemption fails the task.')
        conductor = self._conducting(context)
        return self._until_done(self._leg(conductor.begin), context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Take in the trigger's event: finish, submit the next attempt and wait again, or raise."""
        from airflow_resume_provider.attempts.event import AttemptEvent

        conductor = self._conducting(context)
        step = self._leg(lambda: conductor.proceed(AttemptEvent.from_dict(event)))
        return self._until_done(step, context)

    def _leg(self, work: Callable[[], T]) -> T:
        """Do the work; when it fails for good, no job is left behind that nobody would adopt."""
        try:
            return work()
        except Exception as error:
            if self._conductor is not None:
                self._conductor.forsake(error)
            raise

    def _until_done(self, step: Step, context: Any) -> Any:
        from airflow_resume_provider.operators.conductor import Finished

        while not isinstance(step, Finished):
            trigger = self._trigger(step)
            if self.deferrable:
                self.defer(trigger=trigger, method_name="execute_complete")
            from airflow_resume_provider.operators.blocking import wait

            event = self._leg(functools.partial(wait, trigger))
            step = self._leg(functools.partial(self._conducting(context).proceed, event))
        return dict(step.summary)

    def _trigger(self, waiting: Waiting) -> TrainAttemptTrigger:
        from airflow_resume_provider.triggers.train import TrainAttemptTrigger, min_seconds

        began = float(waiting.carry["began"])
        queue = waiting.placement.queue_timeout
        stall = {"lineage": waiting.lineage, "attempt": waiting.attempt, "seconds": self.stall_timeout}
        return TrainAttemptTrigger(
            job_name=waiting.job_name,
            hold=vars(waiting.hold),
            carry=waiting.carry,
            submitted=waiting.submitted,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            poll_interval=self.poll_interval,
            deadline=began + self.timeout if self.timeout else None,
            queue_deadline=waiting.queued + queue if queue else None,
            stall=stall if self.stall_timeout else None,
            error_budget=self.error_budget,
            not_found_grace=self.not_found_grace,
            minimum_seconds=min_seconds() if self.trigger_min_seconds is None else self.trigger_min_seconds,
        )

    def on_kill(self) -> None:
        """Cancel the job when a person ended the running task, and only then."""
        if self._conductor is None:
            return
        if self._conductor.waiting is None:
            # There is nothing to cancel yet; whoever is about to submit asks what this was about.
            self._conductor.submitter.disturbed = True
            return
        from airflow_resume_provider.operators.killing import kill

        kill(self._conductor)


__all__ = ["ResumableTrainOperator"]
