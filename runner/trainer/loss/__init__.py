"""What the model is trained toward: mixed images with their targets, and the loss."""
