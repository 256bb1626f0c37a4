"""Several processes that train one model: how they are laid out, what each computes, and who drives them."""
