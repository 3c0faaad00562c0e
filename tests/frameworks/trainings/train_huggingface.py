"""A Trainer as its documentation shows it; the one line of ours is `resume_from_checkpoint`."""

import os
import time

import torch
from loop import CHECKPOINT, DIRECTORY, FEATURES, PAUSE, data, digest, say
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def forward(self, x, labels, ids):
        if self.training:
            say(ids=ids.tolist())
            time.sleep(PAUSE)
        loss = torch.nn.functional.mse_loss(self.layers(x), labels)
        return {"loss": loss, "logits": loss.detach().reshape(1)}


torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
torch.manual_seed(7)
inputs, targets = data()
rows = [
    {"x": torch.tensor(x), "labels": torch.tensor(y), "ids": torch.tensor(i)}
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True))
]
arguments = TrainingArguments(
    output_dir=DIRECTORY,
    max_steps=60,
    per_device_train_batch_size=4,
    save_steps=5,
    eval_strategy="steps",
    eval_steps=5,
    save_total_limit=2,
    load_best_model_at_end=True,
    learning_rate=1e-2,
    use_cpu=True,
    seed=7,
    report_to=[],
    disable_tqdm=True,
    remove_unused_columns=False,
    logging_steps=5,
)
trainer = Trainer(
    Model(),
    arguments,
    train_dataset=rows,
    eval_dataset=rows[:8],
    callbacks=[EarlyStoppingCallback(early_stopping_patience=100)],
)
if os.environ.get("TEST_CALLBACK"):
    from airflow_resume_provider.runtime.callbacks.huggingface import ResumeCallback

    trainer.add_callback(ResumeCallback())
say(start=True)
trainer.train(resume_from_checkpoint=CHECKPOINT)
say(digest=digest(p.detach().numpy() for p in trainer.model.parameters()), step=trainer.state.global_step)
