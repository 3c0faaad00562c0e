"""Is this file whole? Read from the file's own structure, never from its name or age."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

_ZIP_START, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_HDF5_START = b"\x89HDF\r\n\x1a\n"
_JSON_LIMIT = 64 << 20


def whole(path: Path) -> bool:
    """Say whether nothing of the file is missing, as far as its structure can tell.

    Knows zip archives (PyTorch, NumPy, Keras), safetensors, HDF5 and JSON. A file of a kind
    that says nothing about its own end counts as whole.
    """
    try:
        stat = path.stat()
        return _whole(str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return False


def all_whole(directory: Path, files: Iterable[str]) -> bool:
    """Say whether each of `files` is there and whole."""
    return all(whole(directory / name) for name in files)


@lru_cache(maxsize=65536)
def _whole(path: str, inode: int, size: int, modified: int) -> bool:
    suffix = Path(path).suffix.lower()
    if check := _BY_SUFFIX.get(suffix):
        return check(Path(path), size)
    with Path(path).open("rb") as file:
        start = file.read(8)
    if start.startswith(_ZIP_START):
        return zip_whole(Path(path), size)
    return hdf5_whole(Path(path), size) if start == _HDF5_START else True


def zip_whole(path: Path, size: int) -> bool:
    """A zip archive ends with its directory's end record, which says where the directory lies."""
    with path.open("rb") as file:
        start = file.read(4)
        if start not in (_ZIP_START, _ZIP_END):
            return size > 0  # an older pickle or text: nothing to tell
        file.seek(max(0, size - 65_557))
        tail = file.read()
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) - at < 22:
        return False
    comment = struct.unpack_from("<H", tail, at + 20)[0]
    return bool(len(tail) - at == 22 + comment)


def safetensors_whole(path: Path, size: int) -> bool:
    """The header says up to which byte the tensors reach; the file must end exactly there."""
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            return False
        length = struct.unpack("<Q", head)[0]
        if length > size - 8:
            return False
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return bool(size == 8 + length + max(ends, default=0))


def hdf5_whole(path: Path, size: int) -> bool:
    """The superblock says where the file ends."""
    with path.open("rb") as file:
        block = file.read(96)
    if len(block) < 48 or not block.startswith(_HDF5_START):
        return False
    version = block[8]
    offsets = block[13] if version < 2 else block[9]
    if offsets != 8:
        return True
    end_at = 28 if version >= 2 else (40 if version == 0 else 44)
    return bool(size >= struct.unpack_from("<Q", block, end_at)[0])


def json_whole(path: Path, size: int) -> bool:
    """JSON that parses has its end."""
    return size > _JSON_LIMIT or read_json(path) is not None


def read_json(path: Path) -> object | None:
    """Return what the JSON file holds, or None when it is absent or cut short."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value


def is_open_for_writing(paths: Iterable[Path]) -> bool:
    """Say whether any process that we may look at still holds one of `paths` open for writing."""
    wanted = {_identity(path) for path in paths} - {None}
    if not wanted or not Path("/proc/self/fd").is_dir():
        return False
    return any(_holds(process, wanted) for process in Path("/proc").iterdir() if process.name.isdigit())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _holds(process: Path, wanted: set[tuple[int, int] | None]) -> bool:
    try:
        names = os.listdir(process / "fd")  # noqa: PTH208  names only, it runs often
    except OSError:
        return False
    return any(_identity(process / "fd" / fd) in wanted and _writes(process, fd) for fd in names)


def _writes(process: Path, fd: str) -> bool:
    try:
        flags = (process / "fdinfo" / fd).read_text().partition("flags:")[2].split()[0]
    except (OSError, IndexError):
        return False
    return int(flags, 8) & (os.O_WRONLY | os.O_RDWR) != 0


_Check = Callable[[Path, int], bool]


def _guarded(check: _Check) -> _Check:
    def guarded(path: Path, size: int) -> bool:
        try:
            return check(path, size)
        except (ValueError, KeyError, TypeError, struct.error):
            return False

    return guarded


_BY_SUFFIX: dict[str, _Check] = {
    ".safetensors": _guarded(safetensors_whole),
    ".json": json_whole,
    ".h5": _guarded(hdf5_whole),
    ".hdf5": _guarded(hdf5_whole),
    **dict.fromkeys((".zip", ".npz", ".pt", ".pth", ".ckpt", ".bin", ".keras"), _guarded(zip_whole)),
}
