"""The commands `dataset …`: import, split, check and show images. Only `show` imports torch."""
