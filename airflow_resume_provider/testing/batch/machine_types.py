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
# GPUs and the only family of machines that has them; to n1 they are attached, in these numbers.
_HOSTS = {
    **dict.fromkeys(("nvidia-tesla-a100", "nvidia-a100-80gb"), "a2"),
    **dict.fromkeys(("nvidia-h100-80gb", "nvidia-h100-mega-80gb", "nvidia-h200-141gb"), "a3"),
    "nvidia-l4": "g2",
}
_ATTACHED = {
    **dict.fromkeys(("nvidia-tesla-t4", "nvidia-tesla-p4", "nvidia-tesla-p100"), (1, 2, 4)),
    **dict.fromkeys(("nvidia-tesla-v100", "nvidia-tesla-k80"), (1, 2, 4, 8)),
}
# The number in these families' names is that of the vCPUs.
_COUNTED_NAMES = "c2 c2d c3 c3d c4 c4a c4d e2 g2 g4 h3 m1 m2 m3 n1 n2 n2d n4 n4a n4d t2a t2d z3"
_COUNTED = frozenset(_COUNTED_NAMES.split())
_SMALL = {"e2-micro": 2, "e2-small": 2, "e2-medium": 2, "f1-micro": 1, "g1-small": 1}
_VCPUS = re.compile(r"(?P<family>[a-z0-9]+)-[a-z]+-(?P<vcpus>[0-9]+)(-[a-z0-9-]+)?")
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


def vcpus(name: str) -> int:
    """How many vCPUs a machine type has; 0 where its name does not tell."""
    match = _VCPUS.fullmatch(f"n1-{name}" if _CUSTOM.fullmatch(name) else name)
    counted = int(match["vcpus"]) if match and match["family"] in _COUNTED else 0
    return counted or _SMALL.get(name, 0)


def impossible(job: Any) -> list[str]:
    """What no machine can be: GPUs where there are none or in other numbers, more CPU than there is."""
    wrong = []
    for policy in (instance.policy for instance in job.allocation_policy.instances):
        for item in policy.accelerators:
            wrong += _impossible_gpu(item.type_.removesuffix("-vws"), item.count, policy.machine_type)
        wanted, there = job.task_groups[0].task_spec.compute_resource.cpu_milli, vcpus(policy.machine_type)
        if there and wanted > there * 1000:
            has = f"{policy.machine_type} has {there * 1000}"
            wrong.append(f"a task wants cpuMilli {wanted}, the machine type {has}")
    return wrong


def _impossible_gpu(name: str, count: int, machine: str) -> list[str]:
    host = "n1" if name in _ATTACHED else _HOSTS.get(name, "")
    family = "n1" if _CUSTOM.fullmatch(machine) else machine.partition("-")[0]
    wrong = []
    if host and machine and family in FAMILIES and family != host:
        wrong.append(f"{name} is only on machines of the family {host}, the machine type is {machine}")
    if name in _ATTACHED and count not in _ATTACHED[name]:
        counts = ", ".join(map(str, _ATTACHED[name]))
        wrong.append(f"a machine can have {counts} of {name}, not {count}")
    return wrong
