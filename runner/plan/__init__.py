"""Who starts which processes of a run: found out from the config and the environment before anything is started.

Imports no torch, but for counting GPUs where there are any. What is planned here is carried out by `runner/launch/`.
"""
