"""Feedback on sessions of external agents: durable before it is acknowledged."""
