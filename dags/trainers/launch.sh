#!/bin/bash
# Starts the processes of this node. Batch says which node this is and where the first one is.
exec torchrun --nnodes "$BATCH_NODE_COUNT" --node-rank "$BATCH_NODE_INDEX" \
    --master-addr "$BATCH_MAIN_NODE_HOSTNAME" --master-port "${MASTER_PORT:-29500}" \
    --nproc-per-node "${PROCESSES:-8}" "${1:-/opt/trainer/train.py}"
