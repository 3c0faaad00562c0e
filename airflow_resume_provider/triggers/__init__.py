"""The trigger that watches an attempt."""
