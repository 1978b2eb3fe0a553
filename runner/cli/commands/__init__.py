"""One module per command: `x.py` for `python -m runner x`, `x/y.py` for `python -m runner x y`."""
