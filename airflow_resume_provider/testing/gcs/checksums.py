"""crc32c and md5 as Cloud Storage shows and checks them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .refusals import Refusal

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo the crc's own, in reflected bit order."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=4096)
def _shift(length: int) -> int:
    """x^(8·length) modulo the polynomial: what appending `length` bytes does to a crc."""
    result, square = 1 << 31, 1 << 23  # 1 and x^8
    while length:
        if length & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        length >>= 1
    return result


def combine(first: int, second: int, second_length: int) -> int:
    """Return the crc32c of two byte strings from their crcs, without reading them again."""
    return _multiply(_shift(second_length), first) ^ second


def crc_text(crc: int) -> str:
    """Return a crc as Cloud Storage writes it: base64 of four big-endian bytes."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def md5_text(digest: bytes) -> str:
    """Return an md5 as Cloud Storage writes it."""
    return base64.b64encode(digest).decode()


def _decode(text: str, length: int, kind: str) -> bytes:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != length:
        raise Refusal(
            400,
            "invalid",
            f'The {kind} you specified in Content-MD5 or x-goog-hash was invalid: "{text}".',
            code="InvalidDigest",
        )
    return raw


@dataclass(frozen=True, slots=True)
class Expected:
    """The checksums that a client says its bytes have."""

    crc32c: int | None = None
    md5: bytes | None = None

    @classmethod
    def of(cls, crc32c: str | None = None, md5: str | None = None) -> Expected:
        """Parse base64 texts; a text that is no checksum is refused."""
        crc = int.from_bytes(_decode(crc32c, 4, "CRC32C"), "big") if crc32c else None
        return cls(crc, _decode(md5, 16, "MD5") if md5 else None)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], md5_header: bool = True) -> Expected:
        """Read `x-goog-hash` (several, or one with commas) and `Content-MD5`."""
        getall = getattr(headers, "getall", None)
        lines = getall("X-Goog-Hash", []) if getall else [headers.get("X-Goog-Hash", "")]
        pairs = (part.strip().partition("=") for part in ",".join(lines).split(","))
        found = {kind: text for kind, _, text in pairs}
        md5 = headers.get("Content-MD5") if md5_header else None
        return cls.of(found.get("crc32c"), found.get("md5") or md5)

    def __or__(self, other: Expected) -> Expected:
        return Expected(
            self.crc32c if self.crc32c is not None else other.crc32c,
            self.md5 if self.md5 is not None else other.md5,
        )

    def check(self, crc32c: int, md5: bytes | None) -> None:
        """Refuse bytes that are not what the client says, as the cloud does."""
        if self.crc32c is not None and self.crc32c != crc32c:
            raise Refusal(
                400,
                "invalid",
                f'Provided CRC32C "{crc_text(self.crc32c)}" doesn\'t match calculated CRC32C '
                f'"{crc_text(crc32c)}".',
                code="BadDigest",
            )
        if self.md5 is not None and self.md5 != md5:
            raise Refusal(
                400,
                "invalid",
                f'Provided MD5 hash "{md5_text(self.md5)}" doesn\'t match calculated MD5 hash '
                f'"{md5_text(md5 or b"")}".',
                code="BadDigest",
            )
