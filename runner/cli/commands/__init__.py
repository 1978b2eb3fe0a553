"""Commands: `runner/cli/commands/x.py` carries out `python -m runner x`, `x/y.py` there `python -m runner x y`."""
