"""Processes that are started here, on one machine or several, by the elastic agent of PyTorch."""
