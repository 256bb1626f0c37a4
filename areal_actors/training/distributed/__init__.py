"""Training of one model on several processes.

Layout, computation of each rank, and control by the trainer's process.
"""
