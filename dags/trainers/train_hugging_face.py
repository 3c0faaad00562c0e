"""A small Hugging Face Trainer; what makes it resumable is marked.

The data are made here, so that it runs without a download.
"""

import os

import torch
from transformers import Trainer, TrainingArguments

from airflow_resume_provider.runtime.callbacks.huggingface import ResumeCallback

STEPS = int(os.environ.get("STEPS", "2000"))


class Model(torch.nn.Module):
    """Two layers; the Trainer wants a loss."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def forward(self, x, labels):
        """Return the loss of a batch."""
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


torch.manual_seed(7)
rows = [{"x": x, "labels": x.sum().reshape(1)} for x in torch.rand(256, 8)]
arguments = TrainingArguments(
    output_dir=os.environ["RESUME_DIR"],  # checkpoints are written where the runtime looks for them
    max_steps=STEPS,
    save_strategy="steps",
    save_steps=20,
    save_total_limit=2,  # on the VM's disk; the store has its own rule, keep_last
    per_device_train_batch_size=4,
    report_to=[],
)
trainer = Trainer(
    model=Model(),
    args=arguments,
    train_dataset=rows,
    callbacks=[ResumeCallback()],  # saves and stops on a preemption notice; optional
)
# Where the restored checkpoint lies; empty on a fresh start.
trainer.train(resume_from_checkpoint=os.environ.get("RESUME_CHECKPOINT") or None)
print(f"finished at step {trainer.state.global_step}")
