"""What a checkpoint looks like on disk, one small class per framework."""

from __future__ import annotations

from airflow_resume_provider.runtime.formats.found import Format, Found
from airflow_resume_provider.runtime.formats.registry import format_named, format_names

__all__ = ["Format", "Found", "format_named", "format_names"]
