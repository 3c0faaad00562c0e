"""A Google Cloud Batch v1 server on loopback that really runs its jobs."""
