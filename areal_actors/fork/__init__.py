"""Runs that begin at a checkpoint of another run, with other settings, its log and its recorded episodes."""
