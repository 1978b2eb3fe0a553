"""Sweeps: many trials of one experiment, each a process and a run folder of its own, in one folder.

    argv ─ Hydra ─ plugins ─ axes (what varies) ─► grid or search (proposals) ─► pool (processes) ─► run folders
                                                        ▲                                                │
                                                        └────────────── outcomes, leaderboard ◄──────────┘

Nothing in memory is needed to go on: the folder of a sweep says what was proposed, and the run folders in it how far
each trial is. Importing this package imports neither torch nor Optuna.
"""
