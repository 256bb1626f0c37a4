"""The staleness gate: grants capacity within the staleness bound."""
