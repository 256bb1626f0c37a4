"""Transfer of model weights between processes, and lookup of models."""
