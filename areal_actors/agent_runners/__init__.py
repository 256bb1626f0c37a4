"""Every way to run an agent for an episode."""
