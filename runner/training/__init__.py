"""One training from begin to end: its parts are assembled, trained, recorded, resumed and stopped."""
