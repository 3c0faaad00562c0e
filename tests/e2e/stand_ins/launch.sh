#!/bin/bash
# In place of torchrun with torch.distributed.checkpoint: one program for each node, with the same files.
exec python "$(dirname "$0")/nodes.py"
