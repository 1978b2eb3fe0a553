"""What is done with data sets and finished runs; imported by the commands and by the library door only."""
