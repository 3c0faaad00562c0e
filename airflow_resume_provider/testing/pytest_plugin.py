"""Pytest fixtures of the local stack; registered as a plugin, so it imports nothing heavy."""
