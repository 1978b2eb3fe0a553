"""Batches of a split in a reproducible order."""
