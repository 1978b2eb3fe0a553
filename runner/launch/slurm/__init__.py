"""Runs that wait in the queue of SLURM."""
