"""Trackers of a run: a process beside the training follows the run folder and sends what is new in it.

The folder is the truth. A tracker that is slow, gone or refuses costs the training nothing; what it lacks is sent when
it is back, at the latest by `runs sync`. This package imports no torch.
"""
