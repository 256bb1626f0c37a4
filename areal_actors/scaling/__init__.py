"""Number of workers that balances a run: the load of its roles, and what follows from it."""
