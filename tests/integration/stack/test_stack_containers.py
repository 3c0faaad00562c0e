"""Jobs in real containers, with podman where it can run, sidecars included."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack_clients import Client, State, container, descriptions, job_of, processes, script, until, variables

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing import LocalStack, Settings
from airflow_resume_provider.testing.executors import containers

REASON = containers.why_not("podman")
IMAGE = "localhost/resume-local-test:latest"
PROGRAMS = ("sh", "sleep", "cat", "touch", "mkdir", "ls", "env", "id")
VOLUMES = ["/mnt/disks/resume:/mnt/resume"]

pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=f"no containers here: {REASON}"),
    pytest.mark.xdist_group("podman"),
]


def podman(*arguments: str) -> str:
    """Output of a podman command."""
    command = ["podman", *containers.engine_arguments("podman"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pack(archive: tarfile.TarFile) -> None:
    """A root file system of a shell, a few programs and the libraries that they need, taken from here."""
    files = {str(Path(shutil.which(name) or "").resolve()): f"bin/{name}" for name in PROGRAMS}
    for program in list(files):
        needed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", needed):
            files[str(Path(library).resolve())] = library.lstrip("/")
    for file, name in files.items():
        info = archive.gettarinfo(file, arcname=name)
        with Path(file).open("rb") as content:
            archive.addfile(info, content)
    directory = tarfile.TarInfo("tmp")
    directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
    archive.addfile(directory)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image made of this machine's own shell, since no registry may be within reach."""
    path = tmp_path_factory.mktemp("image") / "root.tar"
    with tarfile.open(path, "w") as archive:
        pack(archive)
    podman("import", str(path), IMAGE)
    return IMAGE


@pytest.fixture
def pods(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalStack, Client]]:
    """A stack that runs containers, and a client of it."""
    monkeypatch.setenv(containers.PULL, "never")
    settings = Settings(background_grace_seconds=1.0, stop_grace_seconds=1.0)
    with LocalStack(tmp_path, executor="podman", settings=settings) as stack:
        client = Client(stack.batch_endpoint)
        yield stack, client
        client.close()


def sh(text: str, **fields: object) -> object:
    """A container that runs a shell command in the test image."""
    return container("sh", "-c", text, image=IMAGE, volumes=VOLUMES, **fields)


def lines(stack: LocalStack) -> list[str]:
    """What task 0 wrote."""
    found = stack.log_entries("job-1", 0)
    return [entry["message"] for entry in found if entry["log"] == "batch_task_logs"]


def left() -> list[str]:
    """Names of the containers of the tests' jobs."""
    return [
        name for name in podman("ps", "--all", "--format", "{{.Names}}").split() if name.startswith("job-1-")
    ]


def test_a_container_really_is_one(pods: tuple[LocalStack, Client]) -> None:
    """It sees its image's files and not this machine's, its variables and its exit code."""
    stack, client = pods
    text = "ls /work /root /usr 2>&1 | cat > /dev/null; ls /; echo $A $BATCH_TASK_INDEX; exit 7"
    client.run(job_of(sh(text, environment=variables(A="a b"))), timeout=60)
    assert "a b 0" in lines(stack)
    assert "home" not in lines(stack)
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 7
    until(lambda: not left(), "the container to be gone")


def test_sidecars_share_a_directory_of_the_vm(pods: tuple[LocalStack, Client]) -> None:
    """Restore, a background sync, an unmodified training and a finaliser, each in its container."""
    stack, client = pods
    restore = sh("mkdir /mnt/resume/job; echo 5 > /mnt/resume/job/step")
    sync = sh(
        "until [ -e /mnt/resume/job/new ]; do sleep 0.05; done; touch /mnt/resume/job/synced; sleep 60",
        background=True,
    )
    train = sh(
        "echo from $(cat $DIR/step); touch $DIR/new; until [ -e $DIR/synced ]; do sleep 0.05; done",
        environment=variables(DIR="/mnt/resume/job"),
    )
    finish = sh("ls /mnt/resume/job", always_run=True)
    host = script("cat /mnt/disks/resume/job/step")
    job = client.run(job_of(restore, sync, train, finish, host), timeout=90)
    assert job.status.state == State.SUCCEEDED, stack.logs("job-1")
    assert lines(stack) == ["from 5", "new", "step", "synced", "5"]
    until(lambda: not left(), "the containers to be gone with the VM")


def test_a_preemption_stops_a_container_as_docker_stop_would(pods: tuple[LocalStack, Client]) -> None:
    """Process 1 gets SIGTERM; the container is gone with the VM."""
    stack, client = pods
    client.submit(job_of(sh("trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.1; done")))
    until(lambda: "ready" in lines(stack), "the container to run", timeout=60)
    stack.preempt("job-1", grace=1)
    assert "50001" in descriptions(client.wait("job-1", "FAILED"))[-1]
    assert lines(stack) == ["ready", "got TERM"]
    assert left() == []


def test_a_container_does_not_outlive_its_vm(pods: tuple[LocalStack, Client]) -> None:
    """Without notice, and although podman's monitor has left the process tree."""
    stack, client = pods
    client.submit(job_of(sh("echo ready; sleep 345.25")))
    until(lambda: "ready" in lines(stack), "the container to run", timeout=60)
    assert list(processes("sleep\x00345.25"))
    stack.preempt("job-1", notice=False)
    assert list(processes("sleep\x00345.25")) == []
    assert left() == []


def test_secrets_are_on_no_command_line(pods: tuple[LocalStack, Client]) -> None:
    """Values of variables reach the container by the engine's environment."""
    stack, client = pods
    client.submit(job_of(sh("echo ready; sleep 60", environment=variables(TOKEN="s3cr3t-77"))))
    until(lambda: "ready" in lines(stack), "the container to run", timeout=60)
    assert list(processes("s3cr3t-77")) == []


def test_an_image_that_is_not_there_fails_the_task(pods: tuple[LocalStack, Client]) -> None:
    """With the engine's own exit code and words."""
    stack, client = pods
    client.run(job_of(container("true", image="localhost/no-such-image:1")), timeout=60)
    assert client.tasks()[0].status.status_events[-1].task_execution.exit_code == 125
    assert "no-such-image" in stack.logs("job-1")


def test_an_engine_that_cannot_be_used_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, before anything is started."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="docker is not installed"):
        LocalStack(tmp_path / "stack", executor="docker").start()
