"""The actor runtime: actors, handlers, folds and named waits over the bus."""
