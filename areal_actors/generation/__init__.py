"""Generation: the inference worker, and the protocol of generation engines."""
