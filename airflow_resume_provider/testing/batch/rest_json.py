"""JSON bodies and query parameters become requests; what does not fit is refused in the cloud's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid

_PAYLOAD = "Invalid JSON payload received."
_INTEGER = re.compile(r"-?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


def read_body(content: bytes, target: Any, at: str) -> None:
    """Fill a message from a JSON body; `at` is its field in the request, or nothing."""
    try:
        text = content.decode()
        data = json.loads(text)
        if not isinstance(data, dict):
            raise invalid(f'{_PAYLOAD} Unknown name "": Root element must be a message.')
        for error in _unknown_names(data, target.DESCRIPTOR, at):
            raise error
        json_format.Parse(text, target)
    except (json_format.ParseError, ValueError) as error:
        raise invalid(f"{_PAYLOAD} {error}") from None
    except (TypeError, AttributeError, RecursionError):
        raise invalid(f"{_PAYLOAD} A value has not the type of its field.") from None


def _unknown_names(data: Any, descriptor: Any, at: str) -> Iterator[ApiError]:
    """An error for each name that is no field; wrong types are found when the message is filled."""
    if not isinstance(data, dict) or descriptor.file.package == "google.protobuf":
        return
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    for name, value in data.items():
        field = fields.get(name)
        if field is None:
            place = f" at '{at}'" if at else ""
            yield invalid(f'{_PAYLOAD} Unknown name "{name}"{place}: Cannot find field.', at)
        elif field.message_type is not None:
            here = f"{at}.{field.name.rstrip('_')}".lstrip(".")
            yield from _unknown_below(value, field, here)


def _unknown_below(value: Any, field: Any, at: str) -> Iterator[ApiError]:
    if field.message_type.GetOptions().map_entry:
        of_values = field.message_type.fields_by_name["value"].message_type
        if of_values is not None and isinstance(value, dict):
            for key, item in value.items():
                yield from _unknown_names(item, of_values, f'{at}["{key}"]')
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_names(item, field.message_type, f"{at}[{index}]")
    else:
        yield from _unknown_names(value, field.message_type, at)


def read_query(query: Mapping[str, str], message: Any) -> None:
    """Query parameters are fields of the request; one that does not exist is an error, as in the cloud."""
    fields = {name: field for field in message.DESCRIPTOR.fields for name in (field.name, field.json_name)}
    for key, text in query.items():
        field = fields.get(key)
        if field is None or field.message_type is not None:
            raise invalid(
                f'{_PAYLOAD} Unknown name "{key}": Cannot bind query parameter. '
                f"Field '{key}' could not be found in request message."
            )
        try:
            setattr(message, field.name, _value(text, field))
        except (TypeError, ValueError, AttributeError, KeyError):
            kind = "TYPE_BOOL" if field.cpp_type == field.CPPTYPE_BOOL else "TYPE_INT32"
            raise invalid(f"Invalid value at '{field.name}' ({kind}), \"{text}\"", field.name) from None


def _value(text: str, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        return text
    if field.cpp_type == field.CPPTYPE_BOOL:
        return _BOOLEANS[text]
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)
