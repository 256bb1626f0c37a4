"""Remote workers: how they join a run and are admitted, what serves them its files, and launchers that start them."""
