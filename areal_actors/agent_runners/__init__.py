"""Runners: the ways to run an agent for an episode."""
