"""A frozen base in 4 or 8 bits under LoRA (QLoRA, arXiv:2305.14314): `trainer.lora.quantize_base`."""
