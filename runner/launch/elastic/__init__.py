"""Processes that PyTorch's elastic agent starts, on one machine or several."""
