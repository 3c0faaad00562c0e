"""What a store can do wrong: each failure ends as it must, and none of them in a fresh start."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from aiohttp import web
from checkpoint_world import DisturbedServer, Raw, read_tree, refuse, write_tree

from airflow_resume_provider.checkpoints import AttemptRecord, Lineage, StoreOptions
from airflow_resume_provider.checkpoints.progress import Progress
from airflow_resume_provider.errors import (
    PermissionDenied,
    StoreMisconfigured,
    StoreUnavailable,
    UploadFailed,
)
from airflow_resume_provider.testing.gcs import Fault

TRANSIENT = {
    "429": Fault(status=429),
    "500": Fault(status=500),
    "503": Fault(status=503),
    "504": Fault(status=504),
    "408": Fault(status=408),
    "reset": Fault(reset=True),
    "short body": Fault(after=20, reset=True),
    "no body": Fault(after=0, reset=True),
    "stall": Fault(after=20, stall=5),
}
FILES = {"a": b"a" * 100_000, "s/b": b"b" * 1000}
DENIED = (
    "<Error><Code>AccessDenied</Code><Details>x@y.iam.gserviceaccount.com does not have {} access to the"
    " Google Cloud Storage object.</Details></Error>"
)


@pytest.fixture
def committed(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> str:
    Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    server.calm()
    return gs_uri


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
@pytest.mark.parametrize("path", ["list-type", "manifest", "000000%2Fa", "%2Fs%2Fb"])
def test_reading_survives_a_passing_failure(
    committed: str, tmp_path: Path, server: DisturbedServer, fault: Fault, path: str
) -> None:
    """A failure that passes costs a retry and nothing else, whichever request it hits."""
    server.plan.add(fault, method="GET", path=path, times=2)
    options = StoreOptions(max_total_seconds=20, read_seconds=0.5)
    restored = Lineage.open(committed, options=options).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert read_tree(tmp_path / "out") == FILES


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
@pytest.mark.parametrize("path", ["list-type", "manifest", "000000%2Fa"])
def test_lasting_failure_is_never_a_fresh_start(
    committed: str, tmp_path: Path, server: DisturbedServer, impatient: StoreOptions, fault: Fault, path: str
) -> None:
    """M5: a store that does not answer is unavailable within the budget; it is never "nothing there"."""
    server.plan.add(fault, method="GET", path=path)
    with pytest.raises(StoreUnavailable):
        Lineage.open(committed, options=impatient).restore(2, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if "restoring" in path.name]


def test_no_server_is_unavailable(gs_uri: str, impatient: StoreOptions) -> None:
    """A connection that is refused is no empty lineage either."""
    options = StoreOptions(emulator="127.0.0.1:1", max_total_seconds=1)
    with pytest.raises(StoreUnavailable):
        Lineage.open(gs_uri, options=options).choose(2)


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
@pytest.mark.parametrize("path", ["training", "claims", "000000%2Fa", "manifest"])
def test_writing_survives_a_passing_failure(
    gs_uri: str, tmp_path: Path, server: DisturbedServer, fault: Fault, path: str
) -> None:
    """A failure that passes while committing costs a retry, and the commit is there exactly once."""
    server.plan.add(fault, method="PUT", path=path, times=2)
    lineage = Lineage.open(gs_uri, options=StoreOptions(max_total_seconds=20))
    reference = lineage.commit(write_tree(tmp_path / "in", FILES), attempt=1, step=1)
    assert reference.index == 0
    assert Lineage.open(gs_uri).choose(2, contents=True).reference == reference


@pytest.mark.parametrize("status", [429, 503])
def test_lasting_failure_while_writing(
    gs_uri: str, tmp_path: Path, server: DisturbedServer, impatient: StoreOptions, status: int
) -> None:
    """An upload that fails for good is an error, and what had been committed before is untouched."""
    source = write_tree(tmp_path / "in", FILES)
    first = Lineage.open(gs_uri).commit(source, attempt=1, step=1)
    server.plan.add(Fault(status=status), method="PUT", path="000001")
    with pytest.raises(StoreUnavailable):
        Lineage.open(gs_uri, options=impatient).commit(source, attempt=1, step=2)
    server.calm()
    assert Lineage.open(gs_uri).choose(2, contents=True).reference == first


def test_what_is_sent_again_is_not_counted_twice(
    gs_uri: str, tmp_path: Path, server: DisturbedServer
) -> None:
    """A file that was read to its end and refused all the same goes back to nothing in the progress bar."""
    server.plan.add(Fault(status=503), method="PUT", path="000000%2Fa", times=3)
    told: list[Progress] = []
    source = write_tree(tmp_path / "in", FILES)
    Lineage.open(gs_uri).commit(source, attempt=1, step=1, progress=told.append)
    total = sum(map(len, FILES.values()))
    assert max(progress.done_bytes for progress in told) == told[-1].done_bytes == total


@pytest.mark.parametrize("status", [410, 503])
def test_parts_of_a_large_file_are_tried_again(
    gs_uri: str, tmp_path: Path, server: DisturbedServer, status: int
) -> None:
    """A part that fails, or an upload session that is gone, restarts that file only (gsutil#368)."""
    data = os.urandom(12_000_000)
    server.plan.add(Fault(status=status), method="PUT", path="partNumber=2", times=1)
    lineage = Lineage.open(gs_uri, options=StoreOptions(part_bytes=5 << 20))
    lineage.commit(write_tree(tmp_path / "in", {"big": data, **FILES}), attempt=1, step=1)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"big": data, **FILES}


def test_wrong_bytes_once_are_fetched_again(committed: str, tmp_path: Path, server: DisturbedServer) -> None:
    """One flipped bit on the way is noticed, and the file is fetched once more."""
    server.plan.add(Fault(corrupt=5), method="GET", path="000000%2Fa", times=1)
    restored = Lineage.open(committed).restore(2, tmp_path / "out")
    assert restored.choice.passed_over == ()
    assert read_tree(tmp_path / "out") == FILES


@pytest.mark.parametrize("name", ["000001%2Fmanifest", "0002%2Fattempt", "training"])
def test_a_record_that_arrives_damaged_once_is_read_again(
    committed: str, tmp_path: Path, server: DisturbedServer, name: str
) -> None:
    """A byte that flips on the way makes no good checkpoint unusable, and forgets no source."""
    lineage = Lineage.open(committed)
    newest = lineage.commit(tmp_path / "in", attempt=1, step=2)
    lineage.begin_attempt(AttemptRecord(attempt=2, resumed_from=newest.uri))
    rule = server.plan.add(Fault(corrupt=0), method="GET", path=name, times=1)
    choice = Lineage.open(committed).choose(3)
    assert (choice.reference, choice.passed_over) == (newest, ())
    assert rule.hits == 1


def test_wrong_bytes_always_send_one_older(committed: str, tmp_path: Path, server: DisturbedServer) -> None:
    """M6: bytes that stay wrong are a broken checkpoint, so the restore goes one older."""
    Lineage.open(committed).commit(tmp_path / "in", attempt=1, step=2)
    server.plan.add(Fault(corrupt=5), method="GET", path="000001%2Fa")
    restored = Lineage.open(committed).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert restored.reference.index == 0
    assert "crc32c" in restored.choice.passed_over[0].reason


def test_gone_after_the_listing_sends_one_older(
    committed: str, tmp_path: Path, server: DisturbedServer
) -> None:
    """M6: an object that vanishes between listing and reading makes its checkpoint broken, not the store."""
    Lineage.open(committed).commit(tmp_path / "in", attempt=1, step=2)
    server.plan.add(Fault(status=404), method="GET", path="000001%2Fa")
    restored = Lineage.open(committed).restore(2, tmp_path / "out")
    assert restored.reference is not None
    assert restored.reference.index == 0
    assert "a is missing" in restored.choice.passed_over[0].reason


@pytest.mark.parametrize(
    ("method", "fragment", "permission", "job"),
    [
        ("GET", "list-type", "storage.objects.list", "restore"),
        ("GET", "000000%2Fa", "storage.objects.get", "restore"),
        ("PUT", "checkpoints", "storage.objects.create", "commit"),
    ],
)
def test_refusal_names_the_permission(
    committed: str,
    tmp_path: Path,
    server: DisturbedServer,
    method: str,
    fragment: str,
    permission: str,
    job: str,
) -> None:
    """403 is not tried again, and the error says which permission is missing, however it is worded."""
    for body in (DENIED.format(permission), "<Error><Code>AccessDenied</Code></Error>"):
        server.answer = refuse(403, body, method=method, fragment=fragment)
        lineage = Lineage.open(committed)
        jobs = {
            "commit": lambda: lineage.commit(tmp_path / "in", attempt=1, step=9),  # noqa: B023
            "restore": lambda: lineage.restore(2, tmp_path / "out"),  # noqa: B023
        }
        with pytest.raises(PermissionDenied) as caught:
            jobs[job]()
        assert caught.value.permission == permission
        assert permission in str(caught.value)
        assert "Debug source" not in str(caught.value)


def test_expired_credentials(committed: str, server: DisturbedServer) -> None:
    """401 says that the credentials are the problem."""
    server.answer = refuse(401, "Invalid Credentials")
    with pytest.raises(PermissionDenied, match="credentials are not valid"):
        Lineage.open(committed).choose(2)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            400,
            "<Code>UserProjectMissing</Code><Message>Bucket is a requester pays bucket</Message>",
            "requester-pays",
        ),
        (403, "Permission denied on Cloud KMS key. Please ensure that your service account …", "Cloud KMS"),
        (400, "<Message>The Cloud KMS key's state is DISABLED.</Message>", "Cloud KMS"),
        (
            404,
            "<Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message>",
            "does not exist",
        ),
    ],
)
def test_misconfigured_stores_are_recognised(
    committed: str, tmp_path: Path, server: DisturbedServer, status: int, body: str, words: str
) -> None:
    """Requester pays, a disabled key, no such bucket: said in words, at once, with what can be done."""
    server.answer = refuse(status, body)
    for job in (
        lambda lineage: lineage.restore(2, tmp_path / "out"),
        lambda lineage: lineage.commit(tmp_path / "in", attempt=1, step=9),
    ):
        with pytest.raises(StoreMisconfigured, match=words) as caught:
            job(Lineage.open(committed))
        assert caught.value.can


def test_no_such_bucket_is_no_fresh_start(server: DisturbedServer) -> None:
    """A bucket that does not exist is an error and not an empty lineage."""
    with pytest.raises(StoreMisconfigured, match="does not exist"):
        Lineage.open("gs://no-such-bucket/l").choose(1)


def test_payer_is_named_in_each_request(committed: str, server: DisturbedServer) -> None:
    """With a user project each request says who pays (python-storage#479)."""
    seen: set[str | None] = set()

    def remember(request: web.Request) -> None:
        seen.add(request.headers.get("x-goog-user-project"))

    server.answer = remember  # type: ignore[assignment]
    Lineage.open(committed, options=StoreOptions(user_project="payer")).choose(2, contents=True)
    assert seen == {"payer"}


def test_retries_are_logged_once_each(
    committed: str, tmp_path: Path, server: DisturbedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry is one line, however many chunks the file has."""
    options = StoreOptions(range_bytes=10_000, chunk_bytes=5_000, max_total_seconds=20, big_streams=4)
    server.plan.add(Fault(status=503), method="GET", path="000000%2Fa", times=10)
    with caplog.at_level(logging.WARNING):
        Lineage.open(committed, options=options).restore(2, tmp_path / "out")
    lines = [record.getMessage() for record in caplog.records if "trying again" in record.getMessage()]
    tries = {line.split(";")[0] for line in lines}
    assert 1 <= len(lines) <= 4
    assert all("503" in line for line in tries)


def test_many_files_on_a_slow_line(gs_uri: str, tmp_path: Path, server: DisturbedServer) -> None:
    """Files that wait for their turn do not time out: limits are per read, not per transfer (obstore#475)."""
    files = {f"{n:03d}": os.urandom(2_000 if n % 10 else 60_000) for n in range(200)}
    Lineage.open(gs_uri).commit(write_tree(tmp_path / "in", files), attempt=1, step=1)
    server.plan.add(Fault(bandwidth=100_000), method="GET", path="000000%2F[0-9]")
    options = StoreOptions(read_seconds=0.7, max_total_seconds=5)
    Lineage.open(gs_uri, options=options).restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == files


def test_torn_upload_is_not_committed(
    gs_uri: str, gs_raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store shows less than was sent, there is no commit."""
    lineage = Lineage.open(gs_uri)
    spoil = gs_raw.put

    def truncate(_: object) -> None:
        spoil("attempts/0001/checkpoints/000000/a", b"torn")

    with pytest.raises(UploadFailed, match="4 bytes"):
        lineage.commit(write_tree(tmp_path / "in", {"a": b"x" * 100}), attempt=1, step=1, progress=truncate)
    assert not [name for name in gs_raw.names() if name.endswith("manifest.json")]


@pytest.mark.parametrize("form", ["{host}", "http://{host}", "http://{host}/"])
def test_emulator_address_forms(committed: str, server: DisturbedServer, form: str) -> None:
    """STORAGE_EMULATOR_HOST is honoured with and without scheme and trailing slash (gcsfs#425)."""
    host = server.endpoint.removeprefix("http://")
    options = StoreOptions(emulator=form.format(host=host))
    assert Lineage.open(committed, options=options).choose(2).reference is not None
