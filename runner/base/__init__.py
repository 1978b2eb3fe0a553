"""Errors, console, files, random numbers, signals: what all other packages import."""
