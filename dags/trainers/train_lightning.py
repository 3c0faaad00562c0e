"""A small Lightning training; what makes it resumable is marked.

The data are made here, so that it runs without a download.
"""

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from airflow_resume_provider.runtime.callbacks.lightning import ResumeCallback

STEPS = int(os.environ.get("STEPS", "2000"))


class Model(lightning.LightningModule):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        """Return the loss of a batch."""
        x, y = batch
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        """Adam has state, so it is part of each checkpoint."""
        return torch.optim.Adam(self.parameters(), 1e-2)


lightning.seed_everything(7)
inputs = torch.rand(256, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
directory = os.environ["RESUME_DIR"]  # checkpoints are written where the runtime looks for them
saving = ModelCheckpoint(directory, every_n_train_steps=20, save_top_k=2, monitor="step", mode="max")
trainer = lightning.Trainer(
    max_steps=STEPS,
    default_root_dir=directory,
    logger=False,
    enable_progress_bar=False,
    callbacks=[saving, ResumeCallback()],  # ours saves and stops on a preemption notice; optional
)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
# Where the restored checkpoint lies; empty on a fresh start.
trainer.fit(Model(), loader, ckpt_path=os.environ.get("RESUME_CHECKPOINT") or None, weights_only=False)
print(f"finished at step {trainer.global_step}")
