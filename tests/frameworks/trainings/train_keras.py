"""Keras with BackupAndRestore at the end of each epoch, below RESUME_DIR.

Without dropout: Keras's backup does not hold the random state of its layers.
"""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy
from loop import DIRECTORY, FEATURES, PAUSE, SAMPLES, data, digest, order, say


class Batches(keras.utils.PyDataset):
    """Two epochs' worth of ids come from the epoch itself, so nothing depends on this process."""

    def __init__(self):
        super().__init__()
        inputs, targets = data()
        self.x, self.y = numpy.asarray(inputs, "float32"), numpy.asarray(targets, "float32")
        self.epoch = 0

    def __len__(self):
        return SAMPLES // 8

    def __getitem__(self, index):
        ids = order(self.epoch)[index * 8 : index * 8 + 8]
        return self.x[ids], self.y[ids]


class Tell(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        batches.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        say(ids=order(batches.epoch)[batch * 8 : batch * 8 + 8])
        time.sleep(PAUSE)


keras.utils.set_random_seed(7)
batches = Batches()
model = keras.Sequential(
    [
        keras.Input((FEATURES,)),
        keras.layers.Dense(16),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(1e-2), "mse")
backup = keras.callbacks.BackupAndRestore(f"{DIRECTORY}/backup", delete_checkpoint=False)
say(start=True)
model.fit(batches, epochs=12, verbose=0, shuffle=False, callbacks=[Tell(), backup])
say(digest=digest(model.get_weights()), step=12)
