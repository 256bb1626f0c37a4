"""Replays recorded events to actors and compares what they emit.

From the log of a run, or from the tape of one actor.
"""
