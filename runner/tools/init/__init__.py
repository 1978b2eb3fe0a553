"""Writes a small project of the user's own: a first experiment, a README, and checks for git and GitHub."""
