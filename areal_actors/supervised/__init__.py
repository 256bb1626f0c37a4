"""Training on examples: supervised fine-tuning, preferences and reward models."""
