"""Commands on finished runs: `runs list` and so on."""
