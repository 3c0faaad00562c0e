"""One node of a sharded training: its shard on its own disk, the metadata, last, on the first node's.

What torch.distributed.checkpoint writes, as far as its reader looks: the metadata's pickle says which
files there are and how long they are. No node waits for another: both do the same steps at the same pace.
"""

import os
import pickle
import time
from pathlib import Path
from types import SimpleNamespace

STEPS, EVERY, SIZE = 60, 20, 64
directory, restored = Path(os.environ["RESUME_DIR"]), os.environ.get("RESUME_CHECKPOINT", "")
node, count = int(os.environ["BATCH_NODE_INDEX"]), int(os.environ["BATCH_NODE_COUNT"])


def save(step):
    made = directory / f"step-{step}"
    made.mkdir(parents=True)
    (made / f"__{node}_0.distcp").write_bytes(bytes([step]) * SIZE)
    if node == 0:
        files = (f"__{each}_0.distcp" for each in range(count))
        rows = {name: SimpleNamespace(relative_path=name, offset=0, length=SIZE) for name in files}
        temporary = made / ".metadata.tmp"
        temporary.write_bytes(pickle.dumps(SimpleNamespace(storage_data=rows)))
        temporary.rename(made / ".metadata")


step = 0
if restored:
    step = int(Path(restored).name.partition("-")[2])
    shards = sorted(path.name for path in Path(restored).glob("*.distcp"))
    assert shards == [f"__{each}_0.distcp" for each in range(count)], shards
print(f"node {node} of {count} starts at step {step}", flush=True)
while step < STEPS:
    step += 1
    time.sleep(0.1)
    if step % EVERY == 0:
        save(step)
