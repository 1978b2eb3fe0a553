"""The registry of models: numbered versions of packages, and aliases that name one of them.

Importing this package imports no torch.
"""
