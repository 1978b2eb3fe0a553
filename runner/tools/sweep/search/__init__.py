"""A search: what Optuna proposes for the trials of a sweep, and which of them it ends early."""
