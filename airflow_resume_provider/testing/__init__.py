"""The local stack: Batch, object store and metadata servers on loopback, for demos and tests."""
