"""Commands on data sets: `dataset check` and so on."""
