"""The `@task.resumable_train` decorator."""
