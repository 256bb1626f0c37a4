"""The folder of a run: its files, its lock, its log files, and the way from it to the run's bus."""
