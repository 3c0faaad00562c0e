"""Names and values that a trainer or a tool may leave behind: they work, or are one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_world import DisturbedServer, Raw, read_tree, resume_run, write_tree

from airflow_resume_provider.checkpoints import Checkpoint, Lineage
from airflow_resume_provider.errors import FormatError, InvalidInput

ODD = {
    "manifest.json": b"users",
    ".resume/manifest.json": b"other",
    ".resume/metadata/000001.json": b"{}",
    ".resume-staged-x": b"s",
    "sub/.resume-staged-y": b"t",
    **{f"a{chr(code)}b": bytes([code]) for code in (1, 9, 10, 13, 127)},
}


def test_reserved_and_control_names(lineage: Lineage, tmp_path: Path) -> None:
    """Files with names that the format or a store keeps for itself come back byte for byte."""
    source = write_tree(tmp_path / "in", ODD)
    reference = lineage.commit(source, attempt=1, step=1)
    checkpoint = Checkpoint.from_uri(reference.uri)
    checkpoint.verify()
    assert checkpoint.metadata == {}
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == ODD
    with checkpoint.as_directory() as directory:
        assert read_tree(directory) == ODD
    assert lineage.commit(source, attempt=1, step=1) == reference
    lineage.commit(write_tree(tmp_path / "in2", {"x": b"x"}), attempt=1, step=2)
    assert lineage.prune(keep_last=1).deleted == (reference.uri,)


def test_directories_called_manifest_json(lineage: Lineage, tmp_path: Path) -> None:
    """A directory of that name, full or empty, is no other writer."""
    full = write_tree(tmp_path / "full", {"manifest.json/x": b"u"})
    lineage.commit(full, attempt=1, step=1)
    empty = write_tree(tmp_path / "empty", {"manifest.json/": b"", "a": b"a"})
    reference = lineage.commit(empty, attempt=1, step=2)
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(empty)
    with Checkpoint.from_uri(reference.uri).as_directory() as directory:
        assert read_tree(directory) == read_tree(empty)


def test_name_that_is_no_utf8(lineage: Lineage, tmp_path: Path) -> None:
    """Neither a file nor an empty directory with such a name reaches the store, and the name is said."""
    for kind in ("file", "directory"):
        source = write_tree(tmp_path / kind, {"a": b"a"})
        odd = source / "b\udcff"
        odd.touch() if kind == "file" else odd.mkdir()
        with pytest.raises(FormatError, match="udcff"):
            lineage.commit(source, attempt=1, step=1)
    assert lineage.choose(2).reference is None


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "."])
def test_file_option_outside_the_directory(lineage: Lineage, tmp_path: Path, name: str) -> None:
    """`--file` takes names inside the directory only."""
    source = write_tree(tmp_path / "in", {"a": b"a"})
    if name == ".":
        return
    with pytest.raises(InvalidInput) as caught:
        lineage.commit(source, attempt=1, step=1, files=[name])
    assert caught.value.parameter == "file"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: json.dumps({**m, "files": [{"path": "x\ud800", "size": 0, "crc32c": "AAAAAA=="}]}),
            "Unicode",
        ),
        (lambda _: "[" * 200_000, "nested too deeply"),
    ],
)
def test_manifest_that_breaks_readers_is_passed_over(raw: Raw, change: object, words: str) -> None:
    """A lone surrogate or endless nesting is a reason to pass a checkpoint over, for every subcommand."""
    older = raw.checkpoint(1, 0, {"a": b"a"})
    broken = raw.checkpoint(1, 1, {"a": b"a"})
    name = "attempts/0001/checkpoints/000001/manifest.json"
    raw.put(name, change(json.loads(raw.get(name))).encode())  # type: ignore[operator]
    done = resume_run("choose", "--lineage", raw.uri, "--attempt", "2", "--json")
    said = json.loads(done.stdout)
    assert said["checkpoint"]["uri"] == older
    assert words in said["passed_over"][0]["reason"]
    for command in (("verify", broken), ("restore", "--from", broken, "--dir", "/nonexistent/x")):
        done = resume_run(*command, RESUME_LINEAGE="")
        assert done.returncode == 85
        assert broken in done.stderr
        assert "Traceback" not in done.stderr


def test_nan_never_reaches_the_output(raw: Raw) -> None:
    """Metrics that another program wrote as NaN are printed as JSON."""
    raw.checkpoint(1, 0, {"a": b"a"}, metrics={"loss": float("nan"), "big": float("inf")})

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for command in (("choose", "--attempt", "2"), ("list",)):
        done = resume_run(*command, "--lineage", raw.uri, "--json")
        assert "Infinity" in json.dumps(json.loads(done.stdout, parse_constant=refuse))


def test_lineage_in_no_encoding(tmp_path: Path) -> None:
    """A path that is no UTF-8 is refused by the name of the option."""
    write_tree(tmp_path / "in", {"a": b"a"})
    at = ("--lineage", f"file://{tmp_path}/l\udcff", "--attempt", "1", "--step", "1")
    done = resume_run("commit", str(tmp_path / "in"), *at)
    assert done.returncode == 2
    assert "lineage is" in done.stderr
    assert "Traceback" not in done.stderr


def test_second_quarantine_says_that_the_first_stands(raw: Raw) -> None:
    """Quarantining again with another reason reports the reason that is recorded."""
    uri = raw.checkpoint(1, 0, {"a": b"a"})
    assert json.loads(resume_run("quarantine", uri, "--reason", "one", "--json").stdout)["reason"] == "one"
    again = resume_run("quarantine", uri, "--reason", "two", "--json")
    assert json.loads(again.stdout)["reason"] == "one"
    assert "was quarantined before, with the reason 'one'" in again.stderr


def test_second_commit_says_that_metrics_are_unchanged(uri: str, tmp_path: Path) -> None:
    """Committing equal contents again with other metrics says that they were not recorded."""
    source = str(write_tree(tmp_path / "in", {"a": b"a"}))
    at = ("commit", source, "--lineage", uri, "--attempt", "1", "--step", "1", "--json", "--metrics")
    first = resume_run(*at, '{"loss": 1}')
    again = resume_run(*at, '{"loss": 2}')
    assert again.stdout == first.stdout
    assert "already committed" in again.stderr
    assert 'metrics are unchanged, {"loss": 1}' in again.stderr
    assert "already committed" not in first.stderr


def test_placeholder_beside_a_file_of_its_name(gs_raw: Raw, tmp_path: Path, server: DisturbedServer) -> None:
    """A placeholder `a.bin/` beside `a.bin` changes nothing about the file."""
    uri = gs_raw.checkpoint(1, 0, {"a.bin": b"12345"})
    place_raw(server, gs_raw, "attempts/0001/checkpoints/000000/a.bin/")
    lineage = Lineage.open(gs_raw.uri)
    choice = lineage.choose(2)
    assert choice.reference is not None, choice.passed_over
    assert choice.reference.uri == uri
    lineage.restore(2, tmp_path / "out")
    assert read_tree(tmp_path / "out") == {"a.bin": b"12345"}


@pytest.mark.parametrize(
    "name", ["attempts//x", "attempts/0001/checkpoints//x", "attempts/0001/checkpoints/000000//x"]
)
def test_stray_object_with_an_empty_segment(
    gs_raw: Raw, tmp_path: Path, server: DisturbedServer, name: str
) -> None:
    """An object whose name holds `//` is nobody's checkpoint, and keeps nobody from finding one."""
    uri = gs_raw.checkpoint(1, 0, {"a.bin": b"12345"})
    place_raw(server, gs_raw, name)
    lineage = Lineage.open(gs_raw.uri)
    choice = lineage.choose(2)
    assert choice.reference is not None, choice.passed_over
    assert choice.reference.uri == uri
    assert lineage.restore(2, tmp_path / "out").reference == choice.reference
    assert lineage.overview()["attempts"][0]["checkpoints"][0]["state"] == "complete"


def place_raw(server: DisturbedServer, raw: Raw, name: str) -> None:
    """Create an empty object under a name that obstore refuses to write."""
    import urllib.request
    from urllib.parse import quote

    bucket, _, prefix = raw.uri.removeprefix("gs://").partition("/")
    key = quote(f"{prefix}/{name}", safe="")
    url = f"{server.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={key}"
    request = urllib.request.Request(url, data=b"", method="POST", headers={"authorization": "Bearer x"})
    urllib.request.urlopen(request).read()
