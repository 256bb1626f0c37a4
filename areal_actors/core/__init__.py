"""Values, errors, settings and file helpers that all other folders use."""
