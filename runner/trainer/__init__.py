"""The training loop: train an epoch, evaluate exactly, record, save."""
