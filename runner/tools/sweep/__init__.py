"""Sweeps: many trials of one experiment, each a process and a run folder of its own, in one folder.

    argv ─ Hydra ─ plugins ─ axes (what varies) ─► grid or search (proposals) ─► pool (processes) ─► run folders
                                                        ▲                                                │
                                                        └────────────── outcomes, leaderboard ◄──────────┘

A sweep can be resumed from its folder alone: it holds what was proposed, and the run folders in it tell how far each
trial is. Importing this package imports neither torch nor Optuna.
"""
