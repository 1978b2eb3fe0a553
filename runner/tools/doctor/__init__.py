"""What `python -m runner doctor` looks at: the machine, the meeting of machines, and a short real training."""
