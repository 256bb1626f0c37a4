"""Training: the trainer, its engine, checkpoints and published weights."""
