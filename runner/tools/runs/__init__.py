"""Finds, reads, compares and repeats runs from their folders. Imports no torch."""
