"""The filter language of list methods (AIP-160): parse once, then ask message after message.

`AND`, `OR`, `NOT`, `-`, parentheses, `= != < <= > >= :`, quoted strings and the
wildcard `*`. As AIP-160 has it, OR binds tighter than AND, and two terms side
by side mean AND. Fields are looked up in the message's own descriptor, in
snake_case or camelCase; one that does not exist is an error, not "no match".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from airflow_resume_provider.testing.batch.api_errors import ApiError, invalid

Predicate = Callable[[Any], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<op><=|>=|!=|=|<|>|:)|(?P<paren>[()])|(?P<minus>-(?=[^\s\d]))"""
    r"""|"(?P<dq>(?:[^"\\]|\\.)*)"|'(?P<sq>(?:[^'\\]|\\.)*)'|(?P<word>[^\s()<>=!:"']+(?:!(?!=)[^\s()<>=!:"']*)*))"""
)
_MAX_DEPTH = 50
_MAX_LENGTH = 8192


def _error(text: str, why: str) -> ApiError:
    return invalid(f'Invalid list filter "{text}": {why}', "filter")


def compile_filter(text: str, message: Any, aliases: dict[str, str] | None = None) -> Predicate:
    """A predicate for messages of that class.

    Raises:
        ApiError: INVALID_ARGUMENT for anything that is not a filter on that message.
    """
    if not text.strip():
        return lambda _message: True
    if len(text) > _MAX_LENGTH:
        raise _error(text[:80] + "…", f"longer than {_MAX_LENGTH} characters")
    return _Parser(text, message, aliases or {}).parse()


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if not match or match.end() == at:
            raise _error(text, f"unexpected character at position {at}")
        kind = match.lastgroup or ""
        value = match[kind]
        if kind in ("dq", "sq"):
            value = re.sub(r"\\(.)", r"\1", value)
        found.append((kind, value))
        at = match.end()
    return found


class _Parser:
    def __init__(self, text: str, message: Any, aliases: dict[str, str]) -> None:
        self._text, self._message, self._aliases = text, message, aliases
        self._tokens = _tokens(text)
        self._at = self._depth = 0

    def parse(self) -> Predicate:
        predicate = self._all_of()
        if self._at < len(self._tokens):
            raise self._error(f'unexpected "{self._tokens[self._at][1]}"')
        return predicate

    def _error(self, why: str) -> ApiError:
        return _error(self._text, why)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, *token: str) -> bool:
        if self._peek() == token:
            self._at += 1
            return True
        return False

    def _all_of(self) -> Predicate:
        terms = [self._any_of()]
        while self._peek()[0] != "end" and self._peek() != ("paren", ")"):
            self._take("word", "AND")
            terms.append(self._any_of())
        return terms[0] if len(terms) == 1 else lambda message: all(term(message) for term in terms)

    def _any_of(self) -> Predicate:
        terms = [self._term()]
        while self._take("word", "OR"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else lambda message: any(term(message) for term in terms)

    def _term(self) -> Predicate:
        if self._take("word", "NOT") or self._take("minus", "-"):
            inner = self._term()
            return lambda message: not inner(message)
        if self._take("paren", "("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise self._error("nested too deeply")
            inner = self._all_of()
            if not self._take("paren", ")"):
                raise self._error("a parenthesis is not closed")
            self._depth -= 1
            return inner
        return self._comparison()

    def _comparison(self) -> Predicate:
        kind, path = self._next()
        if kind != "word" or path in ("AND", "OR"):
            raise self._error("a field name is missing" if kind == "end" else f'unexpected "{path}"')
        path += self._quoted_tail(path)
        kind, operator = self._next()
        if kind != "op":
            raise self._error(f'"{path}" is not followed by a comparison')
        kind, value = self._next()
        if kind not in ("word", "dq", "sq", "minus"):
            raise self._error(f'"{path} {operator}" has no value')
        if kind == "minus":
            value += self._next()[1]
        return self._compare(path, operator, value)

    def _quoted_tail(self, path: str) -> str:
        """A map key may be quoted: labels."my-key"."""
        return self._next()[1] if path.endswith(".") and self._peek()[0] in ("dq", "sq") else ""

    def _compare(self, path: str, operator: str, value: str) -> Predicate:
        steps, field = self._resolve(self._aliases.get(path, path).split("."))
        test = self._test(field, operator, value, path)
        return lambda message: any(test(found) for found in _values(message, steps))

    def _resolve(self, path: list[str]) -> tuple[list[tuple[str, str]], Any]:
        """Steps from the message to the value, and the descriptor of the field at their end."""
        descriptor, field = self._message.DESCRIPTOR, None
        steps: list[tuple[str, str]] = []
        for position, part in enumerate(path):
            field = descriptor.fields_by_name.get(part) or descriptor.fields_by_camelcase_name.get(part)
            if field is None:
                raise self._error(f'unknown field "{".".join(path)}"')
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                return self._resolve_map(steps, field, path[position + 1 :])
            steps.append(("field", field.name))
            if field.message_type is None or field.message_type.full_name.startswith("google.protobuf."):
                if position + 1 < len(path):
                    raise self._error(f'unknown field "{".".join(path)}"')
                break
            descriptor = field.message_type
        return steps, field

    def _resolve_map(self, steps: list[Any], field: Any, rest: list[str]) -> tuple[list[Any], Any]:
        if not rest:
            return [*steps, ("keys", field.name)], None
        value = field.message_type.fields_by_name["value"]
        if value.message_type is not None:
            raise self._error(f'"{field.name}" cannot be filtered on')
        return [*steps, ("field", field.name), ("key", ".".join(rest))], value

    def _test(self, field: Any, operator: str, value: str, path: str) -> Predicate:
        if operator == ":" and value == "*":
            return lambda _found: True
        if field is not None and field.enum_type is not None:
            return self._test_enum(field.enum_type, operator, value, path)
        if field is not None and field.message_type is not None:
            return self._test_moment(field.message_type.full_name, operator, value, path)
        if field is None or field.cpp_type == field.CPPTYPE_STRING:
            return _test_string(operator, value)
        return self._test_number(field, operator, value, path)

    def _test_enum(self, enum: Any, operator: str, value: str, path: str) -> Predicate:
        if value not in enum.values_by_name:
            raise self._error(f'"{value}" is not a value of {path}')
        if operator not in ("=", "!=", ":"):
            raise self._error(f'"{path}" can only be compared with = and !=')
        number = enum.values_by_name[value].number
        return (lambda found: found != number) if operator == "!=" else (lambda found: found == number)

    def _test_moment(self, kind: str, operator: str, value: str, path: str) -> Predicate:
        if kind != "google.protobuf.Timestamp":
            raise self._error(f'"{path}" cannot be compared')
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise self._error(f'"{value}" is not an RFC 3339 time') from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        compare = _order(operator)
        return lambda found: compare(found.ToDatetime(tzinfo=datetime.UTC), moment)

    def _test_number(self, field: Any, operator: str, value: str, path: str) -> Predicate:
        if field.cpp_type == field.CPPTYPE_BOOL:
            wanted: Any = {"true": True, "false": False}.get(value.lower())
        else:
            wanted = float(value) if re.fullmatch(r"-?\d+(\.\d+)?", value) else None
        if wanted is None:
            raise self._error(f'"{value}" is not a value of {path}')
        compare = _order(operator)
        return lambda found: compare(found, wanted)


def _order(operator: str) -> Callable[[Any, Any], bool]:
    return {
        "=": lambda a, b: a == b,
        ":": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }[operator]


def _test_string(operator: str, value: str) -> Predicate:
    if operator in ("=", "!=", ":") and "*" in value:
        pattern = re.compile(".*".join(re.escape(part) for part in value.split("*")), re.DOTALL)
        if operator == "!=":
            return lambda found: not pattern.fullmatch(found)
        return lambda found: bool(pattern.fullmatch(found))
    if operator == ":":
        return lambda found: value in found
    compare = _order(operator)
    return lambda found: compare(found, value)


def _values(message: Any, steps: list[tuple[str, str]]) -> list[Any]:
    """Every value that a path leads to: several behind a repeated field, none where a key misses."""
    found = [message]
    for kind, name in steps:
        if kind == "key":
            found = [mapping[name] for mapping in found if name in mapping]
        elif kind == "keys":
            found = [key for item in found for key in getattr(item, name)]
        else:
            values = [getattr(item, name) for item in found]
            found = [
                element
                for value in values
                for element in (value if hasattr(value, "add") or hasattr(value, "extend") else [value])
            ]
    return found
