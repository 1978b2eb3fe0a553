"""Answers requests with a packaged model: a front process without torch, and workers that decode and compute."""
