"""Runs that were made: found, read and compared from their folders alone. Imports no torch."""
