"""How far images have drifted from those that a model was validated on: the measures, and a folder of images."""
