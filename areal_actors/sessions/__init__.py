"""The gateway's record of an episode: session states, API keys, capacity, end."""
