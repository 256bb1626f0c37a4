"""One process of a run, on its own host or another: the actors that it holds, and what builds them."""
