"""Where images come from: folders, lists, downloads, memory; their classes and splits."""
