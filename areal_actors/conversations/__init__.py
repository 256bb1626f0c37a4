"""What was said in an episode: the tree of its model calls, token by token, and what each is worth."""
