"""A LightningModule with a stateful loader, so that the middle of an epoch can be resumed."""

import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from loop import CHECKPOINT, DIRECTORY, FEATURES, PAUSE, SAMPLES, data, digest, order, say


class Loader:
    """Batches of four; its position is part of Lightning's checkpoint."""

    def __init__(self):
        inputs, targets = data()
        self.x, self.y = torch.tensor(inputs), torch.tensor(targets)
        self.epoch = self.position = 0

    def __len__(self):
        return SAMPLES // 4

    def __iter__(self):
        while self.position < SAMPLES:
            ids = order(self.epoch)[self.position : self.position + 4]
            self.position += 4
            yield self.x[ids], self.y[ids], torch.tensor(ids)
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        x, y, ids = batch
        say(ids=ids.tolist())
        time.sleep(PAUSE)
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["random"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint):
        self.random = checkpoint["random"]

    def on_train_start(self):
        if hasattr(self, "random"):
            torch.set_rng_state(self.random)


torch.set_num_threads(1)
lightning.seed_everything(7, verbose=False)
model = Model()
callbacks = [ModelCheckpoint(DIRECTORY, every_n_train_steps=5, save_top_k=1, monitor="step", mode="max")]
if os.environ.get("TEST_CALLBACK"):
    from airflow_resume_provider.runtime.callbacks.lightning import ResumeCallback

    callbacks.append(ResumeCallback())
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=60,
    default_root_dir=DIRECTORY,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=callbacks,
)
say(start=True)
trainer.fit(model, Loader(), ckpt_path=CHECKPOINT, weights_only=False)
say(digest=digest(p.detach().numpy() for p in model.parameters()), step=trainer.global_step)
