"""Speed and memory of this machine for a model, measured in a few seconds before a run."""
