"""What the commands `dataset …` do: bring images in, split, check and show them. Imports no torch, `show` apart."""
