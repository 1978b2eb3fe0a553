"""Checks of a config against the schema and of its keys against each other, and the effects of keys."""
