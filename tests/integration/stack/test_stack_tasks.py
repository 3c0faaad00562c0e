"""How tasks run: environment, several tasks and nodes, and every kind of runnable."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from google.cloud import batch_v1
from stack_clients import (
    Client,
    State,
    TaskState,
    container,
    descriptions,
    job_of,
    name_of,
    script,
    until,
    variables,
)

from airflow_resume_provider.testing import LocalStack, Settings


def lines(stack: LocalStack, job: str = "job-1", task: int | None = 0) -> list[str]:
    """What a task wrote, without the agent's own lines."""
    found = stack.log_entries(job, task)
    return [entry["message"] for entry in found if entry["log"] == "batch_task_logs"]


def test_predefined_variables_tell_a_task_who_it_is(client: Client, stack: LocalStack) -> None:
    """Every BATCH_ variable that is documented is set."""
    show = (
        "echo $BATCH_TASK_INDEX $BATCH_TASK_COUNT $BATCH_TASK_RETRY_ATTEMPT $BATCH_NODE_COUNT $BATCH_JOB_UID"
    )
    job = client.run(job_of(script(show), task_count=2, parallelism=1))
    assert lines(stack, task=0) == [f"0 2 0 1 {job.uid}"]
    assert lines(stack, task=1) == [f"1 2 0 1 {job.uid}"]


def test_a_runnables_variables_override_the_tasks(client: Client, stack: LocalStack) -> None:
    """Task environment, then the task's entry of task_environments, then the runnable's own."""
    job = job_of(
        script("echo $A $B $C", environment=variables(C="runnable")),
        environment=variables(A="spec", B="spec", C="spec"),
        task_environments=[variables(B="first"), variables(B="second")],
        task_count=7,
    )
    done = client.run(job)
    assert done.task_groups[0].task_count == 2, "task_count is ignored beside task_environments"
    assert lines(stack, task=0) == ["spec first runnable"]
    assert lines(stack, task=1) == ["spec second runnable"]


def test_nothing_of_the_servers_environment_leaks_in(
    client: Client, stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job sees its own variables and those of a fresh machine only."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "leak")
    client.run(job_of(script("env")))
    names = {line.partition("=")[0] for line in lines(stack)}
    own = "HOME LANG PATH PWD SHLVL STORAGE_EMULATOR_HOST TMPDIR USER _ OLDPWD RESUME_LOCAL_VM RESUME_NICE"
    assert {name for name in names if not name.startswith(("BATCH_", "GCE_"))} <= set(own.split())


def test_containers_share_the_directory_that_they_mount(client: Client, stack: LocalStack) -> None:
    """Paths below a container's mount are rewritten to the VM's directory in arguments and variables."""
    volumes = ["/mnt/disks/resume:/mnt/resume"]
    write = container("sh", "-c", "echo data > /mnt/resume/job/file", volumes=volumes)
    make = container(
        "sh",
        "-c",
        'mkdir "$RESUME_DIR"',
        volumes=volumes,
        environment=variables(RESUME_DIR="/mnt/resume/job"),
    )
    read = container("cat", "/mnt/resume/job/file", volumes=volumes)
    host = script("cat /mnt/disks/resume/job/file")
    job = client.run(job_of(make, write, read, host))
    assert job.status.state == State.SUCCEEDED
    assert lines(stack) == ["data", "data"]
    assert not Path("/mnt/resume/job").exists()


def test_the_image_is_said_to_be_ignored_once(client: Client, stack: LocalStack) -> None:
    """The process executor says so in the log, once per job."""
    client.run(job_of(container("true"), container("true"), task_count=2))
    said = [entry for entry in stack.log_entries("job-1") if "is ignored" in entry["message"]]
    assert len(said) == 1
    assert "gcr.io/any/image" in said[0]["message"]


def test_entrypoint_and_commands_make_the_command_line(client: Client, stack: LocalStack) -> None:
    """Commands are the arguments of the entrypoint, unchanged."""
    client.run(job_of(container("%s|", "a b", "$HOME", "*", entrypoint="printf")))
    assert lines(stack) == ["a b|$HOME|*|"]


def test_a_script_runs_by_its_shebang_line(client: Client, stack: LocalStack) -> None:
    """Without one it is run by /bin/sh."""
    client.run(job_of(script("#!/usr/bin/env python3\nprint(1 + 1)"), script("echo $0 | grep -c /")))
    assert lines(stack) == ["2", "1"]


def test_log_entries_carry_time_severity_runnable_and_attempt(client: Client, stack: LocalStack) -> None:
    """Standard output is INFO, standard error is ERROR, as in Cloud Logging."""
    before = time.time()
    client.run(job_of(script("echo out"), script("echo err >&2")))
    out, err = [entry for entry in stack.log_entries("job-1", 0) if entry["log"] == "batch_task_logs"]
    assert (out["severity"], out["runnable"], out["message"]) == ("INFO", 0, "out")
    assert (err["severity"], err["runnable"], err["message"]) == ("ERROR", 1, "err")
    assert before <= out["time"] <= err["time"]
    assert (out["attempt"], out["task"]) == (0, 0)


def test_runnables_run_in_order_and_stop_at_the_first_failure(client: Client, stack: LocalStack) -> None:
    """What follows a failure does not run, except `always_run`; the first error is the task's."""
    job = client.run(
        job_of(
            script("echo 1"),
            script("exit 3"),
            script("echo no"),
            script("echo last; exit 4", always_run=True),
        )
    )
    assert lines(stack) == ["1", "last"]
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 3
    assert job.status.state == State.FAILED


def test_an_ignored_exit_status_is_no_failure(client: Client, stack: LocalStack) -> None:
    """`ignore_exit_status` lets the task go on and succeed."""
    job = client.run(job_of(script("exit 3", ignore_exit_status=True), script("echo on")))
    assert (job.status.state, lines(stack)) == (State.SUCCEEDED, ["on"])


def test_background_runnables_end_after_the_foreground_and_that_is_no_failure(
    client: Client, stack: LocalStack
) -> None:
    """A background runnable runs beside the others and is killed a short time after the last."""
    side = script("while :; do echo tick >> $HOME/ticks; sleep 0.05; done", background=True)
    wait = script("while [ ! -s $HOME/ticks ]; do sleep 0.02; done; echo seen")
    job = client.run(job_of(side, wait))
    assert (job.status.state, lines(stack)) == (State.SUCCEEDED, ["seen"])


def test_a_background_runnable_that_fails_by_itself_fails_the_task(client: Client) -> None:
    """Only the automatic kill is no failure."""
    job = client.run(job_of(script("exit 9", background=True), script("sleep 0.3")))
    assert job.status.state == State.FAILED
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 9


def test_the_first_failure_counts_also_when_it_was_in_the_background(client: Client) -> None:
    """Of several failures only the first one in time is exposed."""
    gate = "while [ ! -e $HOME/gone ]; do sleep 0.02; done"
    first = script("touch $HOME/gone; exit 3", background=True)
    client.run(job_of(first, script(f"{gate}; sleep 0.3; exit 5"), script("exit 6", always_run=True)))
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 3


def test_a_barrier_holds_every_task_until_all_have_come(client: Client, stack: LocalStack) -> None:
    """No task passes the barrier before the last one has reached it."""
    mark = script("sleep 0.$BATCH_TASK_INDEX; date +%s%N; echo before")
    barrier = batch_v1.Runnable(barrier=batch_v1.Runnable.Barrier(name="all"))
    client.run(job_of(mark, barrier, script("date +%s%N; echo after"), task_count=3, parallelism=3))
    found = [lines(stack, task=task) for task in range(3)]
    arrived = max(int(line[0]) for line in found)
    assert all(int(line[2]) >= arrived for line in found)


def test_tasks_of_several_nodes_know_each_other(client: Client, stack: LocalStack) -> None:
    """With a hosts file every task can read the names of all nodes and knows the main one."""
    show = script(
        'wc -l < "$BATCH_HOSTS_FILE"; grep -c "$BATCH_MAIN_NODE_HOSTNAME" "$BATCH_HOSTS_FILE"; '
        "echo $BATCH_NODE_INDEX"
    )
    client.run(job_of(show, task_count=2, parallelism=2, require_hosts_file=True))
    assert [lines(stack, task=task) for task in range(2)] == [["2", "1", "0"], ["2", "1", "1"]]


def test_tasks_of_one_node_share_its_disk(client: Client, stack: LocalStack) -> None:
    """`task_count_per_node` puts several tasks on one VM."""
    job = client.run(
        job_of(
            script("echo $BATCH_NODE_INDEX >> $HOME/nodes"),
            task_count=2,
            parallelism=2,
            task_count_per_node=2,
        )
    )
    where = {text.rpartition(" on ")[2] for task in client.tasks() for text in descriptions(task)}
    assert len(where) == 1
    assert job.status.task_groups["group0"].instances[0].task_pack == 2


def test_parallelism_bounds_how_many_tasks_run_at_once(client: Client, stack: LocalStack) -> None:
    """Four tasks, two at a time, on two VMs that are used again."""
    client.submit(job_of(script("sleep 0.2"), task_count=4, parallelism=2))
    most = 0
    while client.get_job(name=name_of("job-1")).status.state < State.SUCCEEDED:
        counts = client.get_job(name=name_of("job-1")).status.task_groups["group0"].counts
        most = max(most, counts.get("RUNNING", 0))
    assert most == 2


def test_tasks_in_order_run_one_after_the_other(client: Client, stack: LocalStack) -> None:
    """IN_ORDER runs tasks by increasing index."""
    job = client.run(job_of(script("date +%s%N"), task_count=3, scheduling_policy="IN_ORDER"))
    assert job.task_groups[0].parallelism == 1
    times = [int(lines(stack, task=task)[0]) for task in range(3)]
    assert times == sorted(times)


def test_one_failed_task_fails_the_job_and_the_others_are_told_apart(client: Client) -> None:
    """Counts say how many succeeded and how many failed."""
    job = client.run(job_of(script("exit $BATCH_TASK_INDEX"), task_count=3))
    assert job.status.state == State.FAILED
    assert job.status.task_groups["group0"].counts == {"SUCCEEDED": 1, "FAILED": 2}


def test_a_task_over_its_maximum_run_duration_ends_with_50005(client: Client, stack: LocalStack) -> None:
    """Not even `always_run` runnables run then."""
    client.run(
        job_of(script("sleep 60"), script("echo late", always_run=True), max_run_duration={"seconds": 1})
    )
    event = client.tasks()[0].status.status_events[-1]
    assert event.task_execution.exit_code == 50005
    assert event.description.endswith("due to task runs over the maximum runtime with exit code 50005.")
    assert lines(stack) == []


def test_a_runnable_over_its_timeout_ends_with_50005(client: Client, stack: LocalStack) -> None:
    """`always_run` runnables do run then."""
    job = job_of(script("sleep 60", timeout={"seconds": 1}), script("echo saved", always_run=True))
    client.run(job)
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 50005
    assert lines(stack) == ["saved"]


def test_a_failed_task_is_retried_as_often_as_it_may(client: Client, stack: LocalStack) -> None:
    """maxRetryCount retries, each told by BATCH_TASK_RETRY_ATTEMPT; the job's state says nothing of it."""
    job = client.run(job_of(script("echo try $BATCH_TASK_RETRY_ATTEMPT; exit 1"), max_retry_count=2))
    assert lines(stack) == ["try 0", "try 1", "try 2"]
    assert job.status.state == State.FAILED
    assert len([text for text in descriptions(job) if "RUNNING" in text]) == 2


def test_a_success_after_a_retry_leaves_the_stale_exit_code_as_the_only_one(client: Client) -> None:
    """The event of the success has no task_execution, so the failed attempt's is all there is."""
    job = client.run(job_of(script("test $BATCH_TASK_RETRY_ATTEMPT = 1"), max_retry_count=1))
    [task] = client.tasks()
    codes = [
        event.task_execution.exit_code for event in task.status.status_events if "task_execution" in event
    ]
    assert (job.status.state, task.status.state, codes) == (State.SUCCEEDED, TaskState.SUCCEEDED, [1])


@pytest.mark.parametrize(
    ("action", "codes", "attempts"),
    [("RETRY_TASK", [5], 2), ("RETRY_TASK", [6], 1), ("FAIL_TASK", [5], 1), ("FAIL_TASK", [6], 2)],
)
def test_lifecycle_policies_choose_what_is_retried(
    client: Client, stack: LocalStack, action: str, codes: list[int], attempts: int
) -> None:
    """RETRY_TASK retries only its exit codes, FAIL_TASK all but its."""
    policy = {"action": action, "action_condition": {"exit_codes": codes}}
    client.run(job_of(script("echo try; exit 5"), max_retry_count=1, lifecycle_policies=[policy]))
    assert len(lines(stack)) == attempts


def test_a_command_that_is_not_there_ends_with_127(client: Client) -> None:
    """As in a shell and in `docker run`."""
    client.run(job_of(container("no-such-program")))
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 127


def test_a_signalled_command_ends_with_128_and_its_number(client: Client) -> None:
    """A killed process counts as exit code 137."""
    client.run(job_of(script("kill -9 $$")))
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 137


def test_what_a_container_leaves_running_ends_with_its_main_process(
    client: Client, stack: LocalStack
) -> None:
    """The end of process 1 is the end of a container, also for what has left its session."""
    client.run(job_of(container("sh", "-c", "setsid sleep 311.5 & echo started"), script("sleep 0.1")))
    from stack_clients import processes

    assert lines(stack) == ["started"]
    assert list(processes("sleep\x00311.5")) == []


def test_a_job_without_resources_gets_the_documented_defaults(client: Client) -> None:
    """2000 milliCPU, 2000 MiB, one task, the job's region, a standard VM."""
    job = client.submit(job_of(script("true"), provisioning="PROVISIONING_MODEL_UNSPECIFIED"))
    group = job.task_groups[0]
    resource = group.task_spec.compute_resource
    assert (resource.cpu_milli, resource.memory_mib) == (2000, 2000)
    assert (group.task_count, group.parallelism) == (1, 1)
    assert group.name == f"{job.name}/taskGroups/group0"
    assert list(job.allocation_policy.location.allowed_locations) == ["regions/us-central1"]
    assert job.allocation_policy.instances[0].policy.provisioning_model.name == "STANDARD"
    assert job.status.task_groups["group0"].instances[0].machine_type == "n1-standard-4"


def test_secrets_come_from_the_local_file_and_a_missing_one_fails_the_task(tmp_path: Path) -> None:
    """A secret variable holds the secret's value; one that is not there is an agent's error, 50000."""
    name = "projects/p/secrets/{}/versions/latest"
    with LocalStack(tmp_path, settings=Settings(secrets={"token": "s3cret"})) as stack:
        client = Client(stack.batch_endpoint)
        good = batch_v1.Environment(secret_variables={"TOKEN": name.format("token")})
        bad = batch_v1.Environment(secret_variables={"TOKEN": name.format("other")})
        client.run(job_of(script('test "${#TOKEN}" = 6', environment=good)), "good")
        client.run(job_of(script("true", environment=bad)), "bad")
        assert client.get_job(name=name_of("good")).status.state == State.SUCCEEDED
        assert client.tasks("bad")[0].status.status_events[-1].task_execution.exit_code == 50000
        told = descriptions(client.get_job(name=name_of("bad")))
        assert [text for text in told if name.format("other") in text], "whoever has no logs sees it as well"
        assert "s3cret" not in json.dumps([stack.job("good"), stack.log_entries("good")])
        client.close()


def test_a_type_that_nobody_knows_is_said_once_and_runs(client: Client) -> None:
    """Which types exist where is not known here, so a typing error runs, and one event of the job tells."""
    policy = batch_v1.AllocationPolicy.InstancePolicy(
        machine_type="n11-standard-4",
        accelerators=[batch_v1.AllocationPolicy.Accelerator(type_="nvidia-telsa-t4", count=1)],
    )
    allocation = batch_v1.AllocationPolicy(instances=[{"policy": policy}])
    job = client.run(job_of(script("true"), allocation_policy=allocation, task_count=2))
    [told] = [text for text in descriptions(job) if "n11-standard-4" in text]
    assert "nvidia-telsa-t4" in told
    assert job.status.state == State.SUCCEEDED


def test_a_machine_that_the_cloud_cannot_make_is_said_once_and_runs(client: Client) -> None:
    """The job's event names all that is wrong with it."""
    policy = batch_v1.AllocationPolicy.InstancePolicy(
        machine_type="e2-standard-4",
        accelerators=[batch_v1.AllocationPolicy.Accelerator(type_="nvidia-tesla-t4", count=3)],
    )
    allocation = batch_v1.AllocationPolicy(instances=[{"policy": policy}])
    job = client.run(job_of(script("true"), allocation_policy=allocation))
    [told] = [text for text in descriptions(job) if "no such machine" in text]
    assert "family n1" in told
    assert "not 3" in told
    assert job.status.state == State.SUCCEEDED


def test_a_queued_job_has_no_tasks_yet(tmp_path: Path) -> None:
    """ListTasks is empty and GetTask is NOT_FOUND until the job is scheduled."""
    with LocalStack(tmp_path, settings=Settings(max_vms=1)) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(job_of(script("sleep 60")), "first")
        client.wait("first", "RUNNING")
        client.submit(job_of(script("true")), "second")
        assert client.tasks("second") == []
        client.cancel_job(name=name_of("first"))
        until(lambda: client.tasks("second"), "the tasks to appear")
        client.wait("second", "SUCCEEDED")
        client.close()


def test_a_higher_priority_is_served_first(tmp_path: Path) -> None:
    """Of the jobs that wait for VMs, the one with the highest priority is next."""
    with LocalStack(tmp_path, settings=Settings(max_vms=1)) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(
            job_of(script("while [ ! -e " + str(tmp_path / "go") + " ]; do sleep 0.02; done")), "first"
        )
        client.wait("first", "RUNNING")
        client.submit(job_of(script("true"), priority=1), "low")
        client.submit(job_of(script("true"), priority=99), "high")
        for job in ("low", "high"):
            until(lambda job=job: descriptions(client.get_job(name=name_of(job))), f"{job} to wait for a VM")
        (tmp_path / "go").touch()
        low, high = client.wait("low"), client.wait("high")
        assert high.status.status_events[1].event_time < low.status.status_events[1].event_time
        client.close()


def test_a_job_begins_with_the_vms_that_there_are_and_takes_more_later(tmp_path: Path) -> None:
    """One that needs them all at once says once that it waits, and blocks nobody."""
    meet = tmp_path / "meet"
    meet.mkdir()
    alone = f"until [ -e {meet}/go ]; do sleep 0.02; done"
    both = (
        f"touch {meet}/$BATCH_TASK_INDEX; until [ $(ls {meet} | grep -c '^[0-9]') = 3 ]; do sleep 0.02; done"
    )
    barrier = batch_v1.Runnable(barrier=batch_v1.Runnable.Barrier(name="all"))
    with LocalStack(tmp_path / "stack", settings=Settings(max_vms=3)) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(job_of(script(alone)), "alone")
        client.wait("alone", "RUNNING")
        client.submit(job_of(barrier, script("true"), task_count=3), "gang")
        until(lambda: descriptions(client.get_job(name=name_of("gang"))), "the reason of the wait")
        assert client.run(job_of(script("true")), "small").status.state == State.SUCCEEDED
        client.submit(job_of(script(both), task_count=3), "many")
        client.wait("many", "RUNNING")
        (meet / "go").touch()
        assert client.wait("many").status.state == State.SUCCEEDED
        gang = client.wait("gang")
        client.close()
    assert gang.status.state == State.SUCCEEDED
    waits = [text for text in descriptions(gang) if "waits for VMs" in text]
    assert waits == ["Local stack: the job waits for VMs, it wants 3 at once; 2 of 3 (max_vms) are free."]
