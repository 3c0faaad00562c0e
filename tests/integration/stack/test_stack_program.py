"""The stack as a program: command line, Ctrl-C, kill -9, and its state on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stack_clients import Client, State, descriptions, job_of, name_of, processes, script, until

from airflow_resume_provider.testing import LocalStack, Settings
from airflow_resume_provider.testing.client import read_state

COMMAND = [sys.executable, "-m", "airflow_resume_provider.testing.cli"]


def cli(root: Path, *arguments: str, status: int = 0) -> str:
    """Output of a `resume-local` command."""
    clean = {name: value for name, value in os.environ.items() if name != "BATCH_EMULATOR_HOST"}
    done = subprocess.run(
        [*COMMAND, "--root", str(root), *arguments], capture_output=True, text=True, env=clean, timeout=60
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Client, Path]]:
    """`resume-local up` in the foreground, with a client; killed at the end if it still runs."""
    root = tmp_path / "root"
    process = subprocess.Popen(
        [*COMMAND, "--root", str(root), "up"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: read_state(root), "the stack to listen", timeout=60)
    client = Client(read_state(root)["batch"])
    yield process, client, root
    client.close()
    if process.poll() is None:
        process.kill()
    process.communicate()


ESCAPE = "(setsid nohup sleep {0} >/dev/null 2>&1 &); sleep {0}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_no_process_outlives_the_server(
    foreground: tuple[subprocess.Popen[str], Client, Path], number: signal.Signals
) -> None:
    """Ctrl-C, SIGTERM, SIGHUP and even SIGKILL of the server end every process of every job."""
    process, client, _ = foreground
    seconds = f"400.{int(number)}{os.getpid()}"
    for index in range(3):
        client.submit(job_of(script(ESCAPE.format(seconds))), f"job-{index}")
    until(lambda: len(list(processes(f"sleep\0{seconds}"))) == 6, "six processes to run")
    started = psutil.Process(process.pid).children(recursive=True)
    assert len([child for child in started if "host.py" in " ".join(child.cmdline())]) == 4, (
        "a host, three VMs"
    )
    process.send_signal(number)
    process.wait(30)
    until(lambda: not list(processes(f"sleep\0{seconds}")), "all of them to be gone")
    until(lambda: not [child for child in started if child.is_running()], "the hosts of VMs to be gone")


def test_the_host_of_the_vms_may_be_killed(tmp_path: Path) -> None:
    """VMs live on, later ones get a new host, and nothing is left at the end."""
    with LocalStack(tmp_path) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(job_of(script("sleep 402.5")), "first")
        client.wait("first", "RUNNING")
        host = stack.servers.batch._host._process
        assert host is not None
        os.kill(host.pid, signal.SIGKILL)
        until(lambda: not list(processes("sleep\x00402.5")), "the orphaned VM to end itself")
        assert client.run(job_of(script("true")), "second").status.state == State.SUCCEEDED
        client.close()


def test_what_ran_in_a_vm_dies_even_if_its_init_and_the_host_are_killed(tmp_path: Path) -> None:
    """Nobody is left to adopt the orphans then; they are found by their mark."""
    with LocalStack(tmp_path) as stack:
        client = Client(stack.batch_endpoint)
        client.submit(job_of(script(ESCAPE.format("403.75"))))
        until(lambda: len(list(processes("sleep\x00403.75"))) == 2, "both to run")
        host = stack.servers.batch._host._process
        assert host is not None
        # This host's own: by command line, other stacks on the machine look the same.
        for victim in (*(inits := psutil.Process(host.pid).children()), psutil.Process(host.pid)):
            victim.kill()
        assert len(inits) == 1
        assert "50002" in descriptions(client.wait("job-1", "FAILED"))[-1]
        until(lambda: not list(processes("sleep\x00403.75")), "the orphans to be found")
        client.close()


def test_a_killed_server_comes_back_with_its_jobs(
    foreground: tuple[subprocess.Popen[str], Client, Path],
) -> None:
    """Finished jobs are as they were, running ones fail with 50002, waiting ones run."""
    process, client, root = foreground
    done = client.run(job_of(script("exit 3")), "done")
    client.submit(job_of(script("sleep 60")), "running")
    client.submit(
        job_of(script("test $BATCH_TASK_RETRY_ATTEMPT = 1 || sleep 60"), max_retry_count=1), "retried"
    )
    client.wait("running", "RUNNING")
    client.wait("retried", "RUNNING")
    until(lambda: client.tasks("retried")[0].status.state.name == "RUNNING", "the task to run")
    until(lambda: client.tasks("running")[0].status.state.name == "RUNNING", "the task to run")
    import time

    time.sleep(0.2)  # the server writes changes every 50 ms; a kill within those is a change that never was
    process.kill()
    process.wait()
    with LocalStack(root) as stack:
        again = Client(stack.batch_endpoint)
        assert again.get_job(name=name_of("done")) == done
        job = again.wait("running", "FAILED")
        assert "Batch no longer receives VM updates with exit code 50002" in descriptions(job)[-1]
        assert again.wait("retried").status.state == State.SUCCEEDED
        again.close()


def test_a_deletion_and_a_cancellation_survive_a_restart(tmp_path: Path) -> None:
    """Operations that were under way are finished by the next server."""
    slow = Settings(cleanup_seconds=60)
    with LocalStack(tmp_path, settings=slow) as stack:
        client = Client(stack.batch_endpoint)
        for job in ("cancelled", "deleted"):
            client.submit(job_of(script("sleep 60")), job)
            client.wait(job, "RUNNING")
        cancel = client.begin("cancel_job", name=name_of("cancelled"))
        delete = client.begin("delete_job", name=name_of("deleted"))
        client.close()
    with LocalStack(tmp_path) as stack:
        client = Client(stack.batch_endpoint)
        for operation in (cancel, delete):
            until(
                lambda name=operation.name: client.get_operation(name=name).done, "the operation to be done"
            )
        assert [(job.id, job.state) for job in stack.jobs()] == [("cancelled", "CANCELLED")]
        client.close()


def test_request_ids_survive_a_restart(tmp_path: Path) -> None:
    """The same request id after a restart still means the same job."""
    import uuid

    request_id, uids = str(uuid.uuid4()), set()
    for _ in range(2):
        with LocalStack(tmp_path) as stack:
            client = Client(stack.batch_endpoint)
            uids.add(client.submit(job_of(script("true")), request_id=request_id).uid)
            client.wait("job-1")
            client.close()
    assert len(uids) == 1


def test_the_command_line_from_up_to_down(tmp_path: Path) -> None:
    """up --detach, status, env, jobs, logs, preempt, fault, reset and down do what they say."""
    root = tmp_path / "root"
    exports = cli(root, "up", "--detach")
    names = [line.split("=")[0] for line in exports.splitlines()]
    assert names[:3] == [
        f"export {name}"
        for name in ("BATCH_EMULATOR_HOST", "STORAGE_EMULATOR_HOST", "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT")
    ]
    try:
        assert cli(root, "env") == exports
        assert "already" in cli(root, "up", status=1)
        status = json.loads(cli(root, "status", "--json"))
        client = Client(status["batch"])
        client.submit(job_of(script("echo hello; sleep 60")))
        until(lambda: "hello" in cli(root, "logs", "job-1"), "the log")
        client.submit(job_of(script("for n in 1 2 3; do echo $n; sleep 0.2; done")), "job-2")
        assert cli(root, "logs", "job-2", "--follow").splitlines()[-3:] == ["[0] 1", "[0] 2", "[0] 3"]
        assert "RUNNING" in cli(root, "jobs")
        assert "lost zones/us-central1-a/instances/" in cli(root, "preempt", "job-1", "--no-notice")
        client.wait("job-1", "FAILED")
        assert "exit code 50001" in cli(root, "jobs", "job-1")
        assert "no VM of job-1 runs" in cli(root, "preempt", "job-1", status=1)
        assert "no job nothing" in cli(root, "preempt", "nothing", status=1)
        assert "api_error" in cli(root, "fault", "api_error: {methods: [GetJob], times: 1}")
        assert "can" not in cli(root, "fault", "--clear")
        assert "rate" in cli(root, "fault", "api_error: {rate: 7}", status=1)
        cli(root, "reset")
        assert cli(root, "jobs") == ""
        client.close()
    finally:
        cli(root, "down")
    assert "no stack runs" in cli(root, "down", status=1)
    assert "No local stack" in cli(root, "jobs", status=1)


def test_a_named_root_never_reaches_another_stack(stack: LocalStack, tmp_path: Path) -> None:
    """`--root X reset` with X stopped says so, whatever stack the environment points to."""
    nowhere = tmp_path / "stopped"
    environment = os.environ | {"BATCH_EMULATOR_HOST": stack.batch_endpoint}
    command = [*COMMAND, "--root", str(nowhere), "reset"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"No local stack runs there: {nowhere}" in done.stderr


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    """No traceback, exit status 1."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = cli(tmp_path / "root", "up", "--port", str(port), status=1)
    assert "Traceback" not in error
    assert "Address already in use" in error


def test_a_stack_that_cannot_start_leaves_nothing_behind(tmp_path: Path, stack: LocalStack) -> None:
    """With a taken port neither store nor hosts stay, and the same root can be used at once."""
    port = int(stack.batch_endpoint.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        LocalStack(tmp_path, batch_port=port).start()
    with LocalStack(tmp_path):
        pass


def test_a_stack_for_other_containers_gives_the_name_that_they_know(tmp_path: Path) -> None:
    """Clients are given that name and may use it; jobs of this machine use loopback."""
    with LocalStack(tmp_path, host="0.0.0.0", advertise="resume-local") as stack:
        port = stack.batch_endpoint.rpartition(":")[2]
        assert stack.batch_endpoint == f"127.0.0.1:{port}"
        assert stack.environment["BATCH_EMULATOR_HOST"] == f"resume-local:{port}"
        assert ask(stack, "/local/status", Host=f"resume-local:{port}")[0] == 200
        client = Client(stack.batch_endpoint)
        client.run(job_of(script("echo $STORAGE_EMULATOR_HOST")))
        assert stack.storage_endpoint in stack.logs("job-1")
        client.close()


def test_two_stacks_cannot_share_a_root(tmp_path: Path) -> None:
    """The second says so in one line."""
    with LocalStack(tmp_path):
        error = cli(tmp_path, "up", status=1)
    assert "Traceback" not in error
    assert str(tmp_path) in error


def test_settings_secrets_and_a_plan_come_from_files(tmp_path: Path) -> None:
    """YAML files; an unknown setting is refused by its name."""
    (tmp_path / "settings.yaml").write_text("max_vms: 1\ngrace_seconds: 0.1\n")
    (tmp_path / "secrets.yaml").write_text("token: value\n")
    (tmp_path / "plan.yaml").write_text("faults:\n  - preempt: {job: 1, on_state: RUNNING}\n")
    (tmp_path / "wrong.yaml").write_text("max_vm: 1\n")
    root = tmp_path / "root"
    files = [f"--{name}={tmp_path / (name + '.yaml')}" for name in ("settings", "secrets", "plan")]
    cli(root, "up", "--detach", *files)
    try:
        client = Client(read_state(root)["batch"])
        assert "50001" in descriptions(client.run(job_of(script("sleep 60"))))[-1]
        client.close()
    finally:
        cli(root, "down")
    assert "'max_vm' is not a setting" in cli(root, "up", f"--settings={tmp_path / 'wrong.yaml'}", status=1)


def ask(stack: LocalStack, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    """Status and text of a plain HTTP request."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{stack.batch_endpoint}{path}", data=body, headers=sent)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_web_pages_of_other_origins_can_do_nothing(stack: LocalStack) -> None:
    """A foreign Origin, a foreign Host and a body that a form could send are refused; jobs run commands."""
    jobs = "/v1/projects/p/locations/us-central1/jobs?job_id=evil"
    body = b'{"taskGroups": [{"taskSpec": {"runnables": [{"script": {"text": "true"}}]}}]}'
    json_type = "application/json"
    assert ask(stack, jobs, body, Content_Type=json_type, Origin="https://evil.example")[0] == 403
    assert ask(stack, jobs, body, Content_Type=json_type, Host="evil.example")[0] == 403
    assert ask(stack, jobs, body, Content_Type="text/plain")[0] == 403
    assert ask(stack, "/local/reset", b"{}", Content_Type="text/plain")[0] == 403
    assert stack.jobs() == []
    assert ask(stack, jobs, body, Content_Type=json_type)[0] == 200


def test_the_servers_listen_on_loopback_only(stack: LocalStack) -> None:
    """Neither API, nor store, nor metadata servers listen on another address."""
    assert stack.batch_endpoint.startswith("127.0.0.1:")
    assert stack.storage_endpoint.startswith("http://127.0.0.1:")


def test_host_paths_of_a_job_stay_inside_its_vm(client: Client, stack: LocalStack, tmp_path: Path) -> None:
    """A volume that climbs out of the VM's disk does not."""
    from stack_clients import container

    target = tmp_path / "outside"
    climbing = f"/mnt/../../../../../../../../{target}"
    client.run(job_of(container("touch", "/in/file", volumes=[f"{climbing}:/in"])))
    assert not target.exists()


def test_the_page_is_one_file_without_foreign_parts(stack: LocalStack) -> None:
    """The live page needs nothing from anywhere else."""
    status, page = ask(stack, "/")
    assert status == 200
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert "<script src" not in page


def test_a_pubsub_emulator_gets_the_notifications_that_were_asked_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job and task state changes, with the documented attributes, to the topic of the job."""
    from google.cloud import batch_v1
    from pubsub_double import PubSub

    topic = "projects/local-project/topics/states"
    with PubSub() as pubsub:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub.address)
        wishes = [
            {"type_": "JOB_STATE_CHANGED", "new_job_state": "SUCCEEDED"},
            {"type_": "TASK_STATE_CHANGED"},
        ]
        notifications = [
            batch_v1.JobNotification(pubsub_topic=topic, message=batch_v1.JobNotification.Message(**wish))
            for wish in wishes
        ]
        job = client.run(job_of(script("true"), notifications=notifications))
        messages = until(lambda: len(pubsub.messages) >= 4 and pubsub.messages, "four messages")
    tasks = [
        attributes["NewTaskState"]
        for where, attributes in messages
        if attributes["Type"] == "TASK_STATE_CHANGED"
    ]
    jobs = [attributes for where, attributes in messages if attributes["Type"] == "JOB_STATE_CHANGED"]
    assert {where for where, _ in messages} == {topic}
    assert tasks == ["ASSIGNED", "RUNNING", "SUCCEEDED"]
    assert jobs == [
        {"Type": "JOB_STATE_CHANGED", "JobUID": job.uid, "JobName": job.name, "NewJobState": "SUCCEEDED"}
    ]
