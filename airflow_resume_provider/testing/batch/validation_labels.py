"""Labels: Compute Engine's restrictions, and the names that Google reserves."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_resume_provider.testing.batch.api_errors import invalid

MAX_LABELS = 64
_RESERVED = ("goog-", "google-")
# Lower case letters of any script, digits, underscores and dashes; a key begins with a letter.
_PART = re.compile(r"[\w-]{0,63}")


def _is_part(text: str) -> bool:
    return bool(_PART.fullmatch(text)) and text == text.lower()


def check_labels(labels: Mapping[str, str], at: str) -> None:
    """Refuse labels that the cloud would refuse."""
    if len(labels) > MAX_LABELS:
        raise invalid(f"{at}: at most {MAX_LABELS} labels are allowed, got {len(labels)}.", at)
    for key, value in labels.items():
        if key.startswith(_RESERVED):
            raise invalid(f'{at}: label key "{key}" begins with a reserved prefix (goog-, google-).', at)
        if not key[:1].isalpha() or not _is_part(key):
            raise invalid(
                f'{at}: label key "{key[:100]}" must begin with a lowercase letter and hold at most 63 '
                "lowercase letters, digits, underscores and dashes.",
                at,
            )
        if not _is_part(value):
            raise invalid(
                f'{at}: value "{value[:100]}" of label "{key}" must hold at most 63 lowercase letters, '
                "digits, underscores and dashes.",
                at,
            )
