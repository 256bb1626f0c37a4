"""From a finished episode to training sequences: credit, validation and metrics."""
