"""From finished episodes to training steps: staleness bounds, batch assembly, shared prefixes, and the audit of a run."""
