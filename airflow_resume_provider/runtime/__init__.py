"""The container side: restore, watch, commit, finish. The standard library only at import."""
