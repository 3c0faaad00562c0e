"""Whether all ranks stop: one that saw the notice a step earlier must not leave the others waiting."""

from __future__ import annotations


def any_rank(told: bool) -> bool:
    """Return whether any rank was told; a collective call where there are several, else free."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return told
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    flag = torch.tensor([int(told)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
