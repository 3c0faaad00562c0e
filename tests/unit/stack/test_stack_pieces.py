"""The small parts of the stack: names, plans, path rewriting, capacity, retries, imports."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.testing.batch import names
from airflow_resume_provider.testing.batch.api_errors import HTTP_STATUS, ApiError
from airflow_resume_provider.testing.batch.capacity import OVERTAKEN_AT_MOST, Capacity
from airflow_resume_provider.testing.batch.clock import Clock
from airflow_resume_provider.testing.batch.defaults import system_job_id, system_uid
from airflow_resume_provider.testing.batch.guard import is_loopback
from airflow_resume_provider.testing.batch.injection import matches
from airflow_resume_provider.testing.batch.sockets import SocketDirectory
from airflow_resume_provider.testing.executors.commands import Paths, disk_path
from airflow_resume_provider.testing.faults import KINDS, LOSS_KINDS, Plan, fault, preempt, stock_out

JOB = "projects/p1/locations/us-central1/jobs/j"


@pytest.mark.parametrize("name", [JOB, JOB.replace("p1", "123"), JOB.replace("p1", "example.com:p1")])
def test_job_names_of_projects_by_id_and_number_are_taken(name: str) -> None:
    """Also those of domain projects."""
    assert names.job(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "j", "projects/p1/jobs/j", JOB + "/", JOB.replace("p1", "P"), JOB.replace("us-central1", "-")],
)
def test_malformed_job_names_are_invalid_arguments(name: str) -> None:
    """Not NOT_FOUND: such a job can never be."""
    with pytest.raises(ApiError) as caught:
        names.job(name)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_only_listing_knows_the_location_of_all_locations() -> None:
    """`-` is a parent to list and nowhere to create."""
    assert names.parent("projects/p/locations/-", wildcard=True).covers(JOB.replace("p1", "p"))
    with pytest.raises(ApiError):
        names.parent("projects/p/locations/-")


def test_a_parent_covers_its_own_jobs_only() -> None:
    """A project or location whose name merely begins alike is another one."""
    parent = names.parent("projects/p1/locations/us-central1")
    assert parent.covers(JOB)
    assert not parent.covers(JOB.replace("us-central1", "us-central10"))
    assert not parent.covers(JOB.replace("p1", "p10"))


def test_generated_ids_are_legal() -> None:
    """The id of a job without one matches the API's own rule; so does the uid's form."""
    assert names.JOB_ID.fullmatch(system_job_id())
    assert re.fullmatch(r"a{18}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}0", system_uid("a" * 63))


def test_every_code_has_an_http_status_and_a_grpc_code() -> None:
    """No error can be raised that one of the transports cannot say."""
    for code in HTTP_STATUS:
        error = ApiError(code, "text")
        assert error.http_status >= 400
        assert error.grpc_code.name == code
        assert error.to_json()["error"]["status"] == code


def test_the_clock_never_stands_still_or_goes_back() -> None:
    """Also when a skew is taken away."""
    clock = Clock()
    times = [clock.now() for _ in range(1000)]
    clock.skew = 3600
    times.append(clock.now())
    clock.skew = 0
    times += [clock.now() for _ in range(10)]
    assert all(early < late for early, late in pairwise(times))


PLAN = """
seed: 7
faults:
  - preempt: {job: 1, after_commits: 2, grace_seconds: 5}
  - preempt: {job: {training: abc}, while_restoring: true, notice: false}
  - vanish: {on_state: RUNNING, times: 0}
  - api_error: {methods: GetJob, code: RESOURCE_EXHAUSTED, rate: 0.2}
  - latency: {seconds: 0.2}
  - stock_out: {zones: [us-central1-a], provisioning: SPOT}
  - unknown_type: {name: a9-*}
  - quota: {metric: CPUS}
  - store: {status: 503}
  - late_job: {seconds: 1}
  - event_disorder
  - clock_skew: {seconds: 10}
"""


def test_a_plan_reads_as_yaml_and_writes_itself() -> None:
    """What it writes is the same plan again."""
    plan = Plan.from_yaml(PLAN)
    assert plan.seed == 7
    assert len(plan.faults) == 12
    assert plan.faults[0] == preempt(job=1, after_commits=2, grace_seconds=5)
    assert plan.faults[5] == stock_out(zones=["us-central1-a"], provisioning="SPOT")
    assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("faults: [{explode: {}}]", "fault"),
        ("faults: [{preempt: {}}]", "when"),
        ("faults: [{preempt: {after_commits: 1, on_state: RUNNING}}]", "when"),
        ("faults: [{preempt: {after_commits: -1}}]", "after_commits"),
        ("faults: [{preempt: {after_second: 1}}]", "after_second"),
        ("faults: [{preempt: {on_state: SUCCEEDED}}]", "on_state"),
        ("faults: [{api_error: {code: OOPS}}]", "code"),
        ("faults: [{api_error: {rate: 2}}]", "rate"),
        ("faults: [{store: {status: 200}}]", "status"),
        ("faults: [{latency: {seconds: -1}}]", "seconds"),
        ("fault: []", "plan"),
        ("faults: [1]", "faults"),
        ("faults: [", "plan"),
    ],
)
def test_a_plan_that_can_never_work_is_refused_with_the_parameters_name(text: str, parameter: str) -> None:
    """At once, not when it should strike."""
    with pytest.raises(InvalidInput) as caught:
        Plan.from_yaml(text)
    assert caught.value.parameter == parameter


def test_every_kind_of_fault_has_a_name_that_is_written_back() -> None:
    """Each can be made from its name, with defaults where it has them all."""
    for kind in LOSS_KINDS:
        assert Plan(fault(kind, after_seconds=1)).to_dict()["faults"] == [{kind: {"after_seconds": 1}}]
    for kind in KINDS:
        assert Plan(fault(kind)).to_dict()["faults"] == [{kind: {}}]


def test_jobs_are_matched_by_number_glob_and_labels() -> None:
    """A glob is tried on the id and on the full name."""
    labels = {"a": "b", "c": "d"}
    assert [matches(wanted, 2, JOB, labels) for wanted in (2, "j", "j*", "*/jobs/j", {"a": "b"})] == [
        True
    ] * 5
    assert [matches(wanted, 2, JOB, labels) for wanted in (1, "k", {"a": "x"}, {"z": "b"})] == [False] * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/mnt/resume", "/vm"),
        ("/mnt/resume/a", "/vm/a"),
        ("--dir=/mnt/resume/a", "--dir=/vm/a"),
        ("cat /mnt/resume/a > /mnt/resume/b", "cat /vm/a > /vm/b"),
        ('"/mnt/resume"', '"/vm"'),
        ("/mnt/resume/deep/x", "/other/x"),
        ("/mnt/resumed", "/mnt/resumed"),
        ("/data/mnt/resume", "/data/mnt/resume"),
        ("gs://bucket/mnt/resume", "gs://bucket/mnt/resume"),
    ],
)
def test_paths_below_a_mount_are_rewritten(text: str, expected: str) -> None:
    """Where a path begins and the mount's name ends; the longest mount wins."""
    assert Paths({"/mnt/resume": "/vm", "/mnt/resume/deep/": "/other"})(text) == expected


@given(st.text(alphabet="/.a", max_size=20))
def test_no_host_path_leaves_the_vms_disk(path: str) -> None:
    """Whatever dots and slashes it holds."""
    found = disk_path(Path("/vm"), path)
    assert found.is_relative_to("/vm/disk")
    assert ".." not in found.parts


async def _served(capacity: Capacity, wishes: dict[str, tuple[int, int, int]]) -> list[str]:
    """Who got VMs, and how many, in the order of their turns; each of 64 VMs is freed one by one."""
    served: list[str] = []

    async def job(name: str, wanted: int, priority: int, least: int) -> None:
        served.append(f"{name} {await capacity.take(wanted, priority, least)}")

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for name, wish in wishes.items():
            tasks.create_task(job(name, *wish))
        await asyncio.sleep(0)
        for _ in range(64):
            capacity.give(1)
            await asyncio.sleep(0)
    return served


async def test_capacity_serves_priorities_and_then_the_order_of_arrival() -> None:
    """A job that can do with fewer VMs than it wants begins with what there is."""
    wishes = {"low": (2, 0, 1), "high": (1, 9, 1), "late": (1, 0, 1)}
    full = Capacity(3)
    await full.take(3, 0)
    assert await _served(full, wishes) == ["high 1", "low 1", "late 1"]


async def test_a_job_that_does_not_fit_lets_others_go_first() -> None:
    """One that needs three VMs at once waits, whatever its priority, while others begin with one."""
    full = Capacity(3)
    await full.take(3, 0)
    wishes = {"all": (3, 9, 3), "one": (1, 0, 1), "other": (1, 0, 1)}
    assert await _served(full, wishes) == ["one 1", "other 1", "all 3"]


async def test_a_job_that_does_not_fit_is_not_overtaken_for_ever() -> None:
    """At some time the others wait until it has got all its VMs."""
    capacity = Capacity(2)
    await capacity.take(1, 0)
    gang = asyncio.create_task(capacity.take(2, 0, 2))
    await asyncio.sleep(0)
    for _ in range(OVERTAKEN_AT_MOST):
        capacity.give(await capacity.take(1, 0))
    small = asyncio.create_task(capacity.take(1, 0))
    await asyncio.sleep(0)
    assert not small.done()
    capacity.give(1)
    assert await gang == 2
    capacity.give(2)
    assert await small == 1


async def test_who_gives_up_gives_back_and_lets_others_on() -> None:
    """Cancelled while it waits it blocks nobody; cancelled when its turn has come, its VMs are free again."""
    capacity = Capacity(1)
    await capacity.take(1, 0)
    first, second = (asyncio.create_task(capacity.take(1, 0)) for _ in range(2))
    await asyncio.sleep(0)
    capacity.give(1)
    first.cancel()
    assert await second == 1
    capacity.give(1)
    assert capacity.free == 1


async def test_a_job_that_runs_lets_others_begin_before_it_takes_more() -> None:
    """Of the same priority, although it has waited for longer."""
    capacity = Capacity(1)
    await capacity.take(1, 0)
    more = asyncio.create_task(capacity.take(1, 0, more=True))
    await asyncio.sleep(0)
    new = asyncio.create_task(capacity.take(1, 0))
    await asyncio.sleep(0)
    capacity.give(1)
    assert await new == 1
    assert not more.done()
    more.cancel()


async def test_a_job_that_wants_more_vms_than_there_are_gets_them_all() -> None:
    """It runs slower; it does not wait for ever."""
    assert await Capacity(3).take(10, 0) == 3
    assert await Capacity(3).take(10, 0, 10) == 3


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("a.localhost", True),
        ("evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_definition_and_not_by_lookup(host: str, expected: bool) -> None:
    """A name that merely resolves to loopback is what DNS rebinding uses."""
    assert is_loopback(host) is expected


def test_the_batch_server_needs_no_airflow() -> None:
    """Nothing of Airflow is imported with it."""
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        "import airflow_resume_provider.testing.batch.server, airflow_resume_provider.testing.stack\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_imports_nothing_heavy() -> None:
    """Every pytest run of whoever has the package installed pays for it."""
    code = (
        "import sys, airflow_resume_provider.testing.pytest_plugin\n"
        "assert not {'grpc', 'aiohttp', 'google.cloud.batch_v1', 'airflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_killed_server_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of a dead process's socket is removed; one that is held, or was just made, is not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = "import os; from airflow_resume_provider.testing.batch.sockets import *; "
    killed += "print(SocketDirectory().path, flush=True); os.kill(os.getpid(), 9)"
    command, env = [sys.executable, "-c", killed], {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    dead, held = Path(done.stdout.strip()), SocketDirectory()
    assert dead.is_dir(), "it may belong to a server that is just starting"
    for path in (dead, held.path):
        os.utime(path, (0, 0))
    new = SocketDirectory()
    assert sorted(tmp_path.iterdir()) == sorted([held.path, new.path])
    for directory in (held, new):
        directory.remove()
    assert list(tmp_path.iterdir()) == []
