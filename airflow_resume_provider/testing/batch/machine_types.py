"""Which machine and accelerator types are known to exist, so that a typing error does not run unseen.

From the public lists of machine families and GPU types. Which zone has which is not known here, and new
ones appear, so what is unknown runs all the same, and one event of the job says so.
"""

from __future__ import annotations

import re
from typing import Any

_FAMILIES = """
    a2 a3 a4 a4x c2 c2d c3 c3d c4 c4a c4d e2 f1 g1 g2 g4 h3 h4d m1 m2 m3 m4 n1 n2 n2d n4 n4a n4d
    t2a t2d x4 z3 ct4p ct5lp ct5p ct6e tpu7x
"""
_ACCELERATORS = """
    nvidia-tesla-k80 nvidia-tesla-p4 nvidia-tesla-p100 nvidia-tesla-t4 nvidia-tesla-v100 nvidia-tesla-a100
    nvidia-a100-80gb nvidia-l4 nvidia-h100-80gb nvidia-h100-mega-80gb nvidia-h200-141gb nvidia-b200
    nvidia-b300 nvidia-gb200 nvidia-gb300 nvidia-rtx-pro-6000 ct4p ct5lp ct5p ct6e
"""
FAMILIES, ACCELERATORS = frozenset(_FAMILIES.split()), frozenset(_ACCELERATORS.split())
# A custom machine of the first family has no family in its name.
_CUSTOM = re.compile(r"custom-[0-9]+-[0-9]+(-ext)?")


def is_known_machine(name: str) -> bool:
    """Whether a machine type is of a family that exists."""
    return name.partition("-")[0] in FAMILIES or bool(_CUSTOM.fullmatch(name))


def is_known_accelerator(name: str) -> bool:
    """Whether an accelerator type exists, as itself or as a virtual workstation."""
    return name.removesuffix("-vws") in ACCELERATORS


def unknown_types(job: Any) -> list[str]:
    """The machine and accelerator types of a job that are not known."""
    policies = [instance.policy for instance in job.allocation_policy.instances]
    machines = [p.machine_type for p in policies if p.machine_type and not is_known_machine(p.machine_type)]
    accelerators = [item.type_ for p in policies for item in p.accelerators]
    return [*machines, *(name for name in accelerators if not is_known_accelerator(name))]
