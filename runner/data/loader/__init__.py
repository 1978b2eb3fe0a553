"""Loads the batches of a split in a reproducible order."""
