"""Runs the user's agents: the rollout worker and its agent runners."""
