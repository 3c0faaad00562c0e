"""A directory as a store: the laptop's, or a network file system's.

Not obstore's LocalStore, because that hides files named `x#1`, refuses names of
250 bytes and does not see empty directories; and a commit must be on the disk
before it counts.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from airflow_resume_provider.checkpoints import names
from airflow_resume_provider.checkpoints.durable import sync_directory
from airflow_resume_provider.checkpoints.retrying import Patience, Transient
from airflow_resume_provider.checkpoints.store import Buffer, Listed, StoreOptions, Take
from airflow_resume_provider.errors import (
    AlreadyExists,
    InvalidInput,
    NoSpace,
    ObjectNotFound,
    PermissionDenied,
    ResumeError,
    StoreMisconfigured,
)

T = TypeVar("T")
# A checkpoint's own parts: attempts/N/checkpoints/INDEX.
_CHECKPOINT_DEPTH = 4
# A staged object's name starts so; it is no object until it is linked into place.
_STAGED = names.STAGED
_REFUSED = {
    errno.EACCES: "read access",
    errno.EPERM: "access",
    errno.EROFS: "a writable file system",
}


class FileStore:
    """A directory of this machine."""

    def __init__(self, uri: str, options: StoreOptions, *, parameter: str = "lineage") -> None:
        self.uri, self.options = uri.rstrip("/"), options
        path = unquote(self.uri.removeprefix("file://"))
        path = path.removeprefix("localhost") if path.startswith("localhost/") else path
        if not path.startswith("/") or "\0" in path:
            raise InvalidInput(
                f"{parameter} is {uri!r}, which names no absolute path; write file:///PATH.",
                parameter=parameter,
                value=uri,
            )
        self.root = Path(path)
        self._patience = Patience(options.max_total_seconds)

    def __repr__(self) -> str:
        return f"FileStore({self.uri!r})"

    def objects(self, prefix: str) -> list[Listed]:
        """List everything below the directory `prefix`."""
        top = self._path(prefix)
        try:
            return self._ask("list", prefix, lambda: list(_walk(top, f"{prefix}/" if prefix else "")))
        except ObjectNotFound:
            return []

    def directories(self, prefix: str) -> list[str]:
        """List the names of the directories right below `prefix`."""

        def look() -> list[str]:
            with os.scandir(self._path(prefix)) as entries:
                # What should be there and cannot be seen is asked for, and then said to be missing.
                return [e.name for e in entries if _leads_nowhere(e) or e.is_dir()]

        try:
            return self._ask("list", prefix, look)
        except ObjectNotFound:
            return []

    def size(self, name: str) -> int:
        """Return an object's size."""
        return self._ask("read", name, lambda: _regular(self._path(name)).stat().st_size)

    def read(self, name: str) -> bytes:
        """Return a small object."""
        return self._ask("read", name, lambda: _regular(self._path(name)).read_bytes())

    def stream(self, name: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield `length` bytes from `start` on, or less when the file ends before."""
        try:
            with self._path(name).open("rb", buffering=0) as file:
                file.seek(start)
                yield from _pieces(file.read, length, self.options.chunk_bytes)
        except OSError as error:
            raise self._translate("read", name, error) from error

    def sweep(self, wanted: Sequence[tuple[str, int]], take: Take) -> list[int]:
        """Nothing has to be waited for on a disk."""
        return list(range(len(wanted)))

    def create(self, name: str, data: bytes) -> None:
        """Write a small object that must not be there yet; it is on the disk when this returns."""
        self._ask("write", name, lambda: _write(self._path(name), [data], replace=False))

    def upload(self, name: str, size: int, pieces: Callable[[int], Iterator[Buffer]]) -> None:
        """Write a file; it is on the disk, whole, or not there at all."""
        chunk = self.options.chunk_bytes
        self._ask("write", name, lambda: _write(self._path(name), pieces(chunk), replace=True))

    def make_directory(self, name: str) -> None:
        """Make an empty directory."""
        self._ask("write", name, lambda: self._path(name).mkdir(parents=True, exist_ok=True))

    def delete(self, name: str) -> None:
        """Delete an object, or an empty directory, and the directories that this leaves empty."""
        path = self._unlinked(self._path(name.rstrip("/")))
        if not name.endswith("/"):
            with suppress(ObjectNotFound):
                self._ask("delete", name, path.unlink)
        with suppress(OSError):
            for directory in (path, *path.parents) if name.endswith("/") else path.parents:
                if directory == self.root:
                    return
                directory.rmdir()

    def _unlinked(self, path: Path) -> Path:
        """Return the link through which a checkpoint shows a file that lies elsewhere, else the path."""
        inside = path.relative_to(self.root).parts if path != self.root else ()
        above = [self.root.joinpath(*inside[:depth]) for depth in range(_CHECKPOINT_DEPTH + 1, len(inside))]
        return next((link for link in above if link.is_symlink()), path)

    def local_path(self, name: str) -> Path | None:
        """Return where the object lies on this machine."""
        return self._path(name)

    def _path(self, name: str) -> Path:
        return self.root / names.contained(name, where=self.uri) if name else self.root

    def _ask(self, what: str, name: str, call: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return call()
            except OSError as error:
                raise self._translate(what, name, error) from error

        return self._patience.run(what, f"{self.uri}/{name}".rstrip("/"), once)

    def _is_stray(self, blocked: Path) -> bool:
        """Return whether a file lies where a bucket could have objects below its name all the same.

        In the place of `attempts` it could as well be what is left of a lineage.
        """
        stray = blocked.is_file() and not blocked.is_symlink() and self.root in blocked.parents
        return stray and blocked != self.root / names.ATTEMPTS

    def _translate(self, what: str, name: str, error: OSError) -> Transient | ResumeError:
        uri = f"{self.uri}/{name}".rstrip("/")
        if isinstance(error, FileExistsError):
            if (blocked := _obstacle(self._path(name).parent)) is not None:
                return _misconfigured(blocked, uri)
            return AlreadyExists(f"{uri} is there already.", did="It was left as it is.", uri=uri)
        if what == "write" and error.errno == errno.ENOENT and not _obstacle(self._path(name).parent):
            # Somebody who prunes has just removed the directory, because it was empty.
            return Transient(str(error))
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            blocked = _obstacle(self._path(name) if what == "list" else self._path(name).parent)
            if blocked and not self._is_stray(blocked):
                return _misconfigured(blocked, uri)
            return ObjectNotFound(f"{uri} is not there ({error.strerror}).", uri=uri)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(
                f"The disk of {uri} is full ({error.strerror}).",
                did="Nothing that was there before has changed.",
                can="Free space or use a larger disk.",
                required=0,
                free=0,
            )
        if error.errno in _REFUSED:
            return PermissionDenied(
                f"May not {what} {uri} ({error.strerror}).",
                can=f"Give the user that runs this {_REFUSED[error.errno]}.",
                uri=uri,
                permission=_REFUSED[error.errno],
            )
        if error.errno == errno.ENAMETOOLONG:
            return InvalidInput(
                f"The name {name!r} is too long for this file system.", parameter="name", value=name
            )
        return Transient(str(error))


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link to nothing, or to itself."""
    return entry.is_symlink() and not Path(entry).exists()


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link to a directory that it lies in: following it would not end."""
    if not entry.is_symlink():
        return False
    return Path(os.path.realpath(Path(entry).parent)).is_relative_to(os.path.realpath(entry))


def _obstacle(directory: Path) -> Path | None:
    """Return what stands where `directory`, or one above it, should be; `None` when nothing does."""
    nearest = next((path for path in (directory, *directory.parents) if os.path.lexists(path)), None)
    return nearest if nearest and not nearest.is_dir() else None


def _misconfigured(blocked: Path, uri: str) -> StoreMisconfigured:
    what = "a link that leads nowhere" if blocked.is_symlink() else "not a directory"
    return StoreMisconfigured(
        f"Could not look for {uri}: {blocked} is {what}.",
        did="Nothing is known about what is there.",
        can="Correct the URI, or mount what should be there.",
        uri=uri,
    )


def _walk(top: Path, prefix: str) -> Iterator[Listed]:
    try:
        entries = sorted(os.scandir(top), key=lambda entry: entry.name)
    except FileNotFoundError:
        if _obstacle(top):
            raise
        return
    for entry in entries:
        if _leads_nowhere(entry) or _leads_back(entry):
            continue
        if entry.is_dir():
            yield Listed(f"{prefix}{entry.name}/", 0)
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file() and not entry.name.startswith(_STAGED):
            with suppress(FileNotFoundError):  # gone since; the others are still there
                yield Listed(prefix + entry.name, entry.stat().st_size)


def _regular(path: Path) -> Path:
    if path.exists() and not path.is_file():
        raise IsADirectoryError(errno.EISDIR, "not a file", str(path))
    return path


def _pieces(read: Callable[[int], bytes | None], length: int, chunk: int) -> Iterator[bytes]:
    while length > 0:
        piece = read(min(chunk, length))
        if not piece:
            return
        length -= len(piece)
        yield piece


def _write(path: Path, pieces: Iterator[Buffer] | list[bytes], *, replace: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.parent / f"{_STAGED}{secrets.token_hex(6)}"
    try:
        with staged.open("xb", buffering=0) as file:
            for piece in pieces:
                _write_all(file.fileno(), piece)
            os.fsync(file.fileno())
        if replace:
            staged.replace(path)
        else:
            _link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync_directory(path.parent)


def _write_all(fd: int, piece: Buffer) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def _link(staged: Path, path: Path) -> None:
    """Give `staged` its name, or raise `FileExistsError`: a hard link never overwrites."""
    try:
        os.link(staged, path)
    except FileExistsError:
        # Over NFS the answer to our own success may have been lost.
        if not path.samefile(staged):
            raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # File systems without hard links (FAT, some FUSE): exclusive creation is all there is.
        with path.open("xb") as file:
            file.write(staged.read_bytes())
            os.fsync(file.fileno())
