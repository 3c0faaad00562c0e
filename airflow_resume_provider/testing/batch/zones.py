"""Where a job's VMs may be: the zones of its allocation policy."""

from __future__ import annotations

from typing import Any

# Every region has zones of these letters here; the cloud's differ from region to region.
ZONE_LETTERS = "abc"
REGIONS = frozenset(
    {
        "africa-south1",
        "asia-east1",
        "asia-east2",
        "asia-northeast1",
        "asia-northeast2",
        "asia-northeast3",
        "asia-south1",
        "asia-south2",
        "asia-southeast1",
        "asia-southeast2",
        "australia-southeast1",
        "australia-southeast2",
        "europe-central2",
        "europe-north1",
        "europe-southwest1",
        "europe-west1",
        "europe-west10",
        "europe-west12",
        "europe-west2",
        "europe-west3",
        "europe-west4",
        "europe-west6",
        "europe-west8",
        "europe-west9",
        "me-central1",
        "me-west1",
        "northamerica-northeast1",
        "northamerica-northeast2",
        "southamerica-east1",
        "southamerica-west1",
        "us-central1",
        "us-east1",
        "us-east4",
        "us-east5",
        "us-south1",
        "us-west1",
        "us-west2",
        "us-west3",
        "us-west4",
    }
)


def region_of(location: str) -> str:
    """Region of `regions/R` or `zones/Z`."""
    kind, _, name = location.partition("/")
    return name.rpartition("-")[0] if kind == "zones" else name


def allowed_zones(job: Any, location: str) -> list[str]:
    """Zones that the job's VMs may be in, in the order in which they are tried."""
    allowed = job.allocation_policy.location.allowed_locations
    zones = [name.partition("/")[2] for name in allowed if name.startswith("zones/")]
    if zones:
        return zones
    regions = [name.partition("/")[2] for name in allowed if name.startswith("regions/")] or [location]
    return [f"{region}-{letter}" for region in regions for letter in ZONE_LETTERS]
