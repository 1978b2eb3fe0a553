"""Scores images with a packaged model: the inputs, the scoring, and the output file."""
