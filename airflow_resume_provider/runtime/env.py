"""Every environment variable of the container contract, with its default and meaning.

By name, never by position. The first group is how the operator passes the
options of `resume-run`; the second is what the training process sees.
"""

from __future__ import annotations

# Options of `resume-run`, also accepted as command-line flags.
LINEAGE = "RESUME_LINEAGE"  # no default: URI of the lineage directory
ATTEMPT = "RESUME_ATTEMPT"  # no default: number of this attempt, 1, 2, 3 …
DIR = "RESUME_DIR"  # no default: where checkpoints are restored to and written
FORMAT = "RESUME_FORMAT"  # "auto": the checkpoint format on disk
FROM = "RESUME_FROM"  # "": URI of the reference that the operator offers
EXPLICIT = "RESUME_EXPLICIT"  # "0": 1 when a person named RESUME_FROM, so a broken one is an error
TRAINING_ID = "RESUME_TRAINING_ID"  # derived from the lineage when absent: stable over attempts
FINISHED_WHEN = "RESUME_FINISHED_WHEN"  # "": glob below RESUME_DIR whose existence means finished
STOP_SIGNAL = "RESUME_STOP_SIGNAL"  # "TERM": what the child's process group gets on a notice
GRACE = "RESUME_GRACE"  # "25": seconds between the notice and our own KILL
STRICT = "RESUME_STRICT"  # "0": 1 turns a changed configuration into an error
SPEC_DIGEST = "RESUME_SPEC_DIGEST"  # "": digest of the training spec, kept in manifests
KEEP_LAST = "RESUME_KEEP_LAST"  # "0": keep the newest n checkpoints, 0 keeps all
JOB_NAME = "RESUME_JOB_NAME"  # "": full name of the Batch job, kept in attempt.json

# What the training process sees besides RESUME_DIR, RESUME_ATTEMPT, RESUME_TRAINING_ID.
# RESUME_FROM is then the URI that was really restored, or empty.
STEP = "RESUME_STEP"  # step of the restored checkpoint, or 0
INDEX = "RESUME_INDEX"  # index of the restored checkpoint, or -1
RESUMED = "RESUMED"  # 1 when something was restored, else 0
METRICS_FILE = "RESUME_METRICS_FILE"  # JSON object the trainer may write; goes into the manifest
NOTICE_FILE = "RESUME_NOTICE_FILE"  # appears on a preemption notice and holds the deadline

# Emulators and the platform.
STORAGE_EMULATOR_HOST = "STORAGE_EMULATOR_HOST"  # with or without scheme and trailing slash
METADATA_HOST = "GCE_METADATA_HOST"  # "metadata.google.internal"
CHECKPOINT = "RESUME_CHECKPOINT"  # path of the restored checkpoint itself, or empty
STATE_DIR = "RESUME_STATE_DIR"  # "<RESUME_DIR>.resume": what the parts of the runtime share

# Less usual options of `resume-run`.
CARRY = "RESUME_CARRY"  # small top-level files that travel along: globs, separated by commas
SETTINGS = "RESUME_SETTINGS"  # "": declared settings as a JSON object; a change is noticed
WORLD_SIZE = "RESUME_WORLD_SIZE"  # "": number of training processes; the number of nodes when absent
ELASTIC = "RESUME_ELASTIC"  # "0": 1 when the training can go on with another number of processes
LAZY = "RESUME_LAZY"  # "0": 1 restores nothing, the script gets the bytes when it asks the SDK for them
SHARED_DIR = "RESUME_SHARED_DIR"  # "0": 1 when all nodes see one RESUME_DIR (a network file system)
POLL = "RESUME_POLL"  # "0.5": seconds between looks at RESUME_DIR
NICE = "RESUME_NICE"  # "19": niceness of the uploader while the training runs
BANDWIDTH = "RESUME_BANDWIDTH"  # "0": cap of the upload in bytes per second while training, 0 is none

# What a framework's own scripts read.
PRETRAINED_MODE = "PRETRAINED_MODEL_MODE"  # Mozilla translations: "continue" after a restore
