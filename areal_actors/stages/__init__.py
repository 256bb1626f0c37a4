"""Several runs one after another from one file, with the weights or the episodes of earlier ones."""
