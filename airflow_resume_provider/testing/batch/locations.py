"""The locations that Batch is offered in."""

from __future__ import annotations

from typing import Any

from airflow_resume_provider.testing.batch.messages import Location
from airflow_resume_provider.testing.batch.names import Parent
from airflow_resume_provider.testing.batch.settings import Settings
from airflow_resume_provider.testing.batch.validation import check_location
from airflow_resume_provider.testing.batch.zones import REGIONS


def _location(parent: Parent) -> Any:
    return Location(
        name=str(parent),
        location_id=parent.location,
        labels={"cloud.googleapis.com/region": parent.location},
    )


def get(settings: Settings, parent: Parent) -> Any:
    """One location."""
    check_location(parent.location, settings, "name")
    return _location(parent)


def every(settings: Settings, project: str) -> list[Any]:
    """All locations, by name."""
    return [_location(Parent(project, region)) for region in sorted(settings.allowed_regions or REGIONS)]
