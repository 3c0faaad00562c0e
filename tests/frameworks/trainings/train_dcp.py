"""Two processes with a sharded model, started by torchrun; torch.distributed.checkpoint."""

import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from loop import CHECKPOINT, DIRECTORY, FEATURES, PAUSE, data, digest, order, say
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
inputs, targets = (torch.tensor(each) for each in data())
step = 0
if CHECKPOINT:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=CHECKPOINT)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step = state["step"]
if rank == 0:
    say(start=step)
while step < 40:
    ids = order(step // 16)[step % 16 * 4 :][:4]
    if rank == 0:
        say(ids=ids)
    loss = torch.nn.functional.mse_loss(model(inputs[ids]), targets[ids])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(PAUSE)
    if step % 5 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save(
            {"model": weights, "optimizer": moments, "step": step},
            checkpoint_id=f"{DIRECTORY}/step-{step}",
        )
whole = [parameter.full_tensor().detach().numpy() for parameter in model.parameters()]
if rank == 0:
    say(digest=digest(whole), step=step)
# Whoever takes the group down while another is still in it may be aborted by gloo.
dist.barrier()
dist.destroy_process_group()
