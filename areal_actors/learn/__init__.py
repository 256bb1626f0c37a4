"""Learning from recorded sessions: one answer to a prompt, rewards that came later, and no sampling."""
