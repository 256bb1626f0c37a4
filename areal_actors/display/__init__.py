"""Terminal display, monitor, summary and audit report of a run."""
