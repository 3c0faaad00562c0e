"""A callback for Lightning.

::

    trainer = Trainer(default_root_dir=os.environ["RESUME_DIR"], callbacks=[ResumeCallback(), ...])
    trainer.fit(model, ckpt_path=os.environ.get("RESUME_CHECKPOINT") or None)
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the older name of the same package
    from pytorch_lightning import Callback

from airflow_resume_provider.runtime.callbacks.agreement import any_rank
from airflow_resume_provider.runtime.sdk import current


class ResumeCallback(Callback):  # type: ignore[misc]  # not installed where types are checked
    """Saves and stops after the batch on a notice; says that the training is finished when it is.

    The file is `preempted-step=N.ckpt` in RESUME_DIR; the runtime commits it like every other.
    """

    def __init__(self) -> None:
        self._training = current()
        self._stopped = False

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Save and stop when any rank has been told."""
        if not self._stopped and any_rank(self._training.should_stop):
            self._stopped = trainer.should_stop = True
            trainer.save_checkpoint(self._training.directory / f"preempted-step={trainer.global_step}.ckpt")

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """The end of the training, unless it was us who ended it."""
        if not self._stopped:
            self._training.finish()
