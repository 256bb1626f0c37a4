"""Training of one model on several processes: layout, computation of each rank, and control by the trainer's process."""
