"""Evaluation in detail: every image of a split, per-class measures, confusion matrix, calibration, and their files."""
