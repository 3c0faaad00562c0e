"""Links from a task to its job, its logs and its checkpoint."""
