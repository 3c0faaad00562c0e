"""The main job, end to end: a training that is preempted twice and finishes once."""
