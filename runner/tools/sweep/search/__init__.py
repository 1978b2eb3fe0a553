"""Searches and pruners of a sweep, by Optuna."""
