"""The format: what is written can be read, and what cannot be trusted is a named error."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.checkpoints import checksum
from airflow_resume_provider.checkpoints.manifest import Abandoned, FileEntry, Manifest
from airflow_resume_provider.errors import (
    DuplicatePath,
    EscapingPath,
    ManifestError,
    ManifestUnreadable,
    UnknownSchema,
    WrongSize,
)

URI = "gs://b/l/attempts/0002/checkpoints/000007"
SEGMENT = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text not in (".", "..")
)
PATHS = st.lists(SEGMENT, min_size=1, max_size=3).map(lambda parts: "/".join(["d", *parts]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "training_id": "t",
        "attempt": 2,
        "index": 7,
        "step": 500,
        "files": [{"path": "a/b.bin", "size": 3, "crc32c": checksum.encode(5)}],
        **changes,
    }


def read(data: Any, uri: str = URI) -> Manifest:
    return Manifest.from_json(data if isinstance(data, bytes) else json.dumps(data).encode(), uri=uri)


@st.composite
def manifests(draw: Callable[..., Any]) -> Manifest:
    # One fixed depth keeps a file from being another file's directory.
    paths = draw(
        st.lists(PATHS.filter(lambda path: path.count("/") == 1), unique=True, min_size=1, max_size=6)
    )
    entries = [
        FileEntry(
            path=path,
            size=draw(st.integers(0, 2**50)),
            crc32c=checksum.encode(draw(st.integers(0, 2**32 - 1))),
        )
        for path in paths
    ]
    return Manifest(
        training_id=draw(st.text()),
        attempt=2,
        index=7,
        step=draw(st.integers(0, 2**53)),
        files=tuple(entries),
        directories=tuple(draw(st.lists(SEGMENT.map("e/".__add__), unique=True, max_size=2))),
        metrics=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        metadata=draw(st.dictionaries(st.text(), JSON, max_size=3)),
        resumed_from=draw(st.text()),
        extra={"x-later": draw(JSON)},
    )


@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    """Writing and reading a manifest gives the same manifest, unknown fields included."""
    assert Manifest.from_json(manifest.to_json(), uri=URI) == manifest


@given(JSON, JSON)
def test_unknown_fields_survive(of_manifest: Any, of_file: Any) -> None:
    """Fields of a newer minor version are still there after reading and writing."""
    data = plain(**{"x-new": of_manifest})
    data["files"][0]["x-new"] = of_file
    again = json.loads(read(data).to_json())
    assert again["x-new"] == of_manifest
    assert again["files"][0]["x-new"] == of_file


@given(st.integers(0, 400))
def test_truncation_is_named(length: int) -> None:
    """A manifest cut at any byte is unreadable, never something else."""
    raw = json.dumps(plain()).encode()
    with pytest.raises(ManifestUnreadable):
        read(raw[: min(length, len(raw) - 1)])


@given(JSON)
def test_any_json_is_read_or_named(data: Any) -> None:
    """Whatever JSON lies there, reading it ends in a manifest or a named error."""
    with pytest.raises(ManifestError):
        read(data)


@pytest.mark.parametrize("schema", [1, "1", "1.7", 1.2])
def test_minor_versions_are_read(schema: Any) -> None:
    """Any version 1 is read."""
    assert read(plain(schema=schema)).step == 500


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"schema": 2}, UnknownSchema),
        ({"schema": "2.0"}, UnknownSchema),
        ({"schema": None}, ManifestUnreadable),
        ({"schema": True}, ManifestUnreadable),
        ({"step": "500"}, ManifestUnreadable),
        ({"step": None}, ManifestUnreadable),
        ({"files": None}, ManifestUnreadable),
        ({"files": ["a"]}, ManifestUnreadable),
        ({"metrics": [1]}, ManifestUnreadable),
        ({"attempt": 1}, ManifestUnreadable),
        ({"index": 6}, ManifestUnreadable),
        ({"total_bytes": 4}, WrongSize),
        ({"abandoned": True}, Abandoned),
    ],
)
def test_defects_are_named(changes: dict[str, Any], error: type[ManifestError]) -> None:
    """Each defect has its own error, which says where."""
    with pytest.raises(error) as caught:
        read(plain(**changes))
    assert caught.value.uri == URI


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"size": -1}, WrongSize),
        ({"size": 1.5}, ManifestUnreadable),
        ({"crc32c": "!!"}, ManifestUnreadable),
        ({"crc32c": "AAAA"}, ManifestUnreadable),
        ({"path": "/etc/passwd"}, EscapingPath),
        ({"path": "../x"}, EscapingPath),
        ({"path": "a/../../x"}, EscapingPath),
        ({"path": "a//b"}, EscapingPath),
        ({"path": "./a"}, EscapingPath),
        ({"path": ""}, EscapingPath),
        ({"path": "a\0b"}, EscapingPath),
        ({"stored_as": "../../0001/secret"}, EscapingPath),
    ],
)
def test_bad_entries_are_named(entry: dict[str, Any], error: type[ManifestError]) -> None:
    """Wrong sizes and checksums and escaping names are named errors."""
    with pytest.raises(error):
        read(plain(files=[{"path": "a", "size": 3, "crc32c": checksum.encode(5), **entry}]))


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
def test_duplicates_are_named(paths: tuple[str, str]) -> None:
    """One name twice, or as a file and as a directory, is a named error."""
    files = [{"path": path, "size": 0, "crc32c": checksum.encode(0)} for path in paths]
    with pytest.raises(DuplicatePath):
        read(plain(files=files))


def test_placeholder_entries_are_directories() -> None:
    """An entry that ends in a slash is an empty directory, as other tools write it."""
    files = [{"path": path, "size": 0, "crc32c": checksum.encode(0)} for path in ("ckpt/", "weights")]
    manifest = read(plain(files=files))
    assert [entry.path for entry in manifest.files] == ["weights"]
    assert manifest.directories == ("ckpt",)


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_checksums_combine(data: bytes, cut: int) -> None:
    """The checksums of two pieces combine to the checksum of the whole."""
    first, second = data[:cut], data[cut:]
    assert checksum.combine(crc32c(first), crc32c(second), len(second)) == crc32c(data)


def test_checksum_is_shown_as_the_store_shows_it() -> None:
    """The known value of the test vector 123456789, big-endian in base64."""
    assert checksum.encode(crc32c(b"123456789")) == "4waSgw=="
    assert checksum.decode("4waSgw==") == 0xE3069283
