"""Scoring images with a packaged model: what is scored, how, and the file that it goes to."""
