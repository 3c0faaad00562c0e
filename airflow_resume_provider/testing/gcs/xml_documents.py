"""Documents and headers of the XML API."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from .checksums import crc_text, md5_text
from .refusals import invalid
from .settings import object_settings
from .versions import Version

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_SETTINGS = {
    "Content-Type": "contentType",
    "Content-Encoding": "contentEncoding",
    "Content-Disposition": "contentDisposition",
    "Content-Language": "contentLanguage",
    "Cache-Control": "cacheControl",
    "x-goog-storage-class": "storageClass",
    "x-goog-custom-time": "customTime",
}


def document(root: str, *content: str) -> web.Response:
    """Return an XML document as a response."""
    text = f"<?xml version='1.0' encoding='UTF-8'?><{root} xmlns='{NAMESPACE}'>{''.join(content)}</{root}>"
    return web.Response(text=text, content_type="application/xml", charset="UTF-8")


def element(name: str, value: object) -> str:
    """Return one element with text in it."""
    return f"<{name}>{escape(str(value))}</{name}>"


def local_name(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def settings_of(headers: Any) -> dict[str, Any]:
    """Read an object's settings from the headers of a request."""
    given: dict[str, Any] = {key: headers[name] for name, key in _SETTINGS.items() if name in headers}
    if "aws-chunked" in given.get("contentEncoding", ""):
        raise invalid("aws-chunked uploads are not supported.")
    metadata = {
        name[len("x-goog-meta-") :].lower(): value
        for name, value in headers.items()
        if name.lower().startswith("x-goog-meta-")
    }
    return object_settings(given | ({"metadata": metadata} if metadata else {}))


def written_headers(version: Version) -> dict[str, str]:
    """Return the headers that tell a client what it has just written."""
    hashes = f"crc32c={crc_text(version.crc32c)}"
    if version.md5 is not None:
        hashes += f",md5={md5_text(version.md5)}"
    return {
        "ETag": version.xml_etag,
        "x-goog-generation": str(version.generation),
        "x-goog-metageneration": str(version.metageneration),
        "x-goog-hash": hashes,
        "x-goog-stored-content-encoding": version.content_encoding or "identity",
        "x-goog-stored-content-length": str(version.size),
    }
