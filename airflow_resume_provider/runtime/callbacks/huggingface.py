"""A callback for the Hugging Face Trainer.

::

    trainer = Trainer(..., callbacks=[ResumeCallback()])
    trainer.train(resume_from_checkpoint=os.environ.get("RESUME_CHECKPOINT") or None)
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from airflow_resume_provider.runtime.callbacks.agreement import any_rank
from airflow_resume_provider.runtime.sdk import current


class ResumeCallback(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
    """Saves and stops at the next step on a notice; says that the training is finished when it is.

    What is saved below RESUME_DIR is committed by the runtime, like every other checkpoint.
    """

    def __init__(self) -> None:
        self._training = current()
        self._stopped = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Save and stop when any rank has been told."""
        if state.global_step < state.max_steps and any_rank(self._training.should_stop):
            control.should_save = control.should_training_stop = self._stopped = True
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The end of the training, unless it was us who ended it."""
        if not self._stopped:
            self._training.finish()
