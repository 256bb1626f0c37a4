"""Policies whose adapters are loaded into the inference servers of the run that calls them."""
