"""One module per command: `runner/commands/x.py` carries out `python -m runner x`."""
