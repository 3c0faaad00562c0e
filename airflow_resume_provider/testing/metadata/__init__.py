"""The metadata server that each local VM has, as Compute Engine's `metadata.google.internal`."""
