"""State of sessions: the table of agents' sessions, and the registry of external ones."""
