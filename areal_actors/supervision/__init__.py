"""Processes of a run under supervision: the server of their bus, their start, liveness, restarts and end."""
