"""Processes of a run: launching, supervision, health, recovery and resuming."""
