"""What is wrong with the learning signal of a run, in sentences, from its first batch."""
