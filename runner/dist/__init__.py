"""Devices, network addresses, the process group and its watchdog."""
