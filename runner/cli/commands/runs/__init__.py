"""Commands on existing runs: `runs list` and so on."""
