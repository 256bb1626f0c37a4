"""The proof beside a checkpoint: a hash chain over the log, and digests of recipe, code, data and model."""
