"""What the small trainings share: data, what they say, where they write."""

import hashlib
import json
import os

SAMPLES = 64
FEATURES = 8
DIRECTORY = os.environ["RESUME_DIR"]
CHECKPOINT = os.environ.get("RESUME_CHECKPOINT") or None
PAUSE = float(os.environ.get("TEST_STEP_SECONDS", "0.02"))


def say(**words):
    """One line that the test reads."""
    print(json.dumps(words), flush=True)


def data(seed=3):
    """The same numbers for every framework, as lists: inputs and targets."""
    import random

    dice = random.Random(seed)
    inputs = [[dice.uniform(-1, 1) for _ in range(FEATURES)] for _ in range(SAMPLES)]
    return inputs, [[sum(row)] for row in inputs]


def order(epoch):
    """The shuffled sample ids of an epoch."""
    import random

    ids = list(range(SAMPLES))
    random.Random(epoch).shuffle(ids)
    return ids


def digest(arrays):
    """One digest over all parameters' bytes."""
    made = hashlib.sha256()
    for array in arrays:
        made.update(array.tobytes())
    return made.hexdigest()
