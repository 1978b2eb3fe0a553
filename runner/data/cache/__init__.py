"""Caches of a data set: the index of its files (across runs), and decoded images (across epochs)."""
