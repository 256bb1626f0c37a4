"""Images of models with vision: their files, their patches and positions, and the model's inputs with them."""
