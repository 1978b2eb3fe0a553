"""One training from start to end: assemble its parts, train, record, resume, stop."""
