"""Episodes of a run as data for other programs: demonstrations, preference pairs, trajectories of an open format."""
