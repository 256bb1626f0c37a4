"""The gateway's record of an episode: its states, its keys, its place, its end."""
