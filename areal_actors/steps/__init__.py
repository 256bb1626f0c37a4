"""From finished episodes to the steps that train them: what may start, what forms a batch, what is shared in it."""
