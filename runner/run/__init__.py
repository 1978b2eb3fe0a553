"""Bytes on disk: what the files of a run folder may hold. Imports no torch."""
