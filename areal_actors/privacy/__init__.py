"""Privacy of served sessions: redaction by rule, and retention by age and size."""
