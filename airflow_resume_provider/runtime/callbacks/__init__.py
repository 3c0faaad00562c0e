"""Callbacks that save and stop at a step's boundary on a preemption notice; each imports its framework."""
