"""Google Cloud Batch: building jobs, reading events, clients and the shared watcher."""
