"""Commands on registered models: `models list` and so on."""
