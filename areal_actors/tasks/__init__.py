"""Task datasets, and the actor that draws from them."""
