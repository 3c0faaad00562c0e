"""Names of buckets and objects: what is legal, how they order, what a glob matches."""

from __future__ import annotations

import re
from functools import lru_cache

from .refusals import Refusal, invalid

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED = {"storage", "upload", "download", "batch", "resumable"}  # paths of the JSON API


def check_bucket(name: str) -> str:
    """Return a legal bucket name or refuse it, as the naming rules of Cloud Storage say."""
    parts = name.split(".")
    legal = (
        _BUCKET.fullmatch(name)
        and not _ADDRESS.fullmatch(name)
        and all(1 <= len(part) <= 63 for part in parts)
        and (len(parts) > 1 or len(name) <= 63)
        and not any(part[0] == "-" or part[-1] == "-" for part in parts)
        and not name.startswith("goog")
        and "google" not in name
        and name not in _RESERVED
    )
    if not legal:
        raise invalid(f"Invalid bucket name: '{name}'", code="InvalidBucketName")
    return name


def check_object(name: str) -> str:
    """Return a legal object name or refuse it."""
    if not name:
        raise Refusal(400, "required", "Required", location="name", code="InvalidArgument")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise invalid("The object name is not valid UTF-8.", code="InvalidURI") from None
    if length > 1024:
        raise invalid("The maximum object length is 1024 characters, but got a name with "
                      f"{length} characters.", code="KeyTooLong")  # fmt: skip
    if "\r" in name or "\n" in name or "\0" in name:
        raise invalid("Disallowed unicode characters present in object name.")
    if name in (".", "..") or name.startswith(".well-known/acme-challenge/"):
        raise invalid(f"Invalid object name: '{name}'")
    return name


def after(prefix: str) -> str | None:
    """Return the smallest name above every name that starts with `prefix`; None when there is none."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:
            last = 0xE000  # surrogates are no characters
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None


@lru_cache(maxsize=256)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Compile a `matchGlob`: `*` stays within a path segment, `**` does not."""
    try:
        return re.compile("".join(_pieces(glob)), re.DOTALL)
    except re.error:
        raise invalid(f"Invalid glob: {glob}", location="matchGlob") from None


_PIECE = re.compile(r"\\.|\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{|\}|,|.", re.DOTALL)


def _pieces(glob: str) -> list[str]:
    pieces, depth = [], 0
    for piece in _PIECE.findall(glob):
        closes = piece == "}" and depth > 0
        depth += (piece == "{") - closes
        pieces.append(_translate(piece, inside=depth > 0 or closes))
    return pieces


def _translate(piece: str, inside: bool) -> str:
    fixed = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if piece in fixed:
        return fixed[piece]
    if piece == "[":
        raise invalid("Invalid glob: a [ without its ]", location="matchGlob")
    if piece[0] == "[" and len(piece) > 2:
        negated = "^" if piece[1] in "!^" else ""
        return f"[{negated}" + piece[1:-1].lstrip("!^").replace("\\", "\\\\") + "]"
    if inside and piece in "{},":
        return {"{": "(?:", "}": ")", ",": "|"}[piece]
    return re.escape(piece[1:] if piece[0] == "\\" and len(piece) > 1 else piece)
