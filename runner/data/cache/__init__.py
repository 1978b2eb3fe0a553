"""What is kept of a data set between epochs and runs: the index of its files, decoded images, a budget for both."""
