"""Partial responses: the `X-Goog-FieldMask` header and the `fields` parameter of Google's APIs."""

from __future__ import annotations

from typing import Any

from airflow_resume_provider.testing.batch.api_errors import invalid

Tree = dict[str, "Tree"]


def parse(text: str, message: Any) -> Tree | None:
    """A mask such as `jobs.name,jobs(status/state,labels),next_page_token`; None keeps everything.

    Raises:
        ApiError: a path does not exist in the message.
    """
    if not text.strip() or text.strip() == "*":
        return None
    tree: Tree = {}
    for path in _paths(text.strip()):
        _add(tree, path, message.DESCRIPTOR, text)
    return tree


def _paths(text: str) -> list[list[str]]:
    """Every path of a mask, parentheses multiplied out."""
    paths: list[list[str]] = []
    stack: list[list[str]] = [[]]
    word = ""
    for character in text + ",":
        if character == "(":
            stack.append([*stack[-1], *_split(word)])
            word = ""
        elif character in ",)":
            if word.strip():
                paths.append([*stack[-1], *_split(word)])
            word = ""
            if character == ")":
                if len(stack) == 1:
                    raise invalid(f'Invalid field mask "{text}".', "fields")
                stack.pop()
        else:
            word += character
    if len(stack) > 1:
        raise invalid(f'Invalid field mask "{text}".', "fields")
    return paths


def _split(word: str) -> list[str]:
    return [part for part in word.strip().replace("/", ".").split(".") if part]


def _add(tree: Tree, path: list[str], descriptor: Any, text: str) -> None:
    for part in path:
        if part == "*":
            return
        field = descriptor and (
            descriptor.fields_by_name.get(part) or descriptor.fields_by_camelcase_name.get(part)
        )
        if not field:
            raise invalid(f'Invalid field mask "{text}": no field "{part}".', "fields")
        tree = tree.setdefault(field.name, {})
        message = field.message_type
        descriptor = None if message is None or message.GetOptions().map_entry else message


def apply(message: Any, tree: Tree | None) -> Any:
    """Remove every field that the mask does not name, in place."""
    if not tree:
        return message
    for field, value in message.ListFields():
        if field.name not in tree:
            message.ClearField(field.name)
            continue
        below = tree[field.name]
        if not below or field.message_type is None:
            continue
        for item in value if field.is_repeated else [value]:
            apply(item, below)
    return message
