"""Worker extension of a vLLM server; see `--worker-extension-cls`. Nothing of this project is imported.

vLLM packs the output matrix for its CPU kernels. Where that matrix is tied to the embedding, loading weights replaces the embedding
and leaves the packed copy as it was.
"""

from typing import Any


class Reload:
    """Mixed into vLLM's worker, which has `reload_weights` and `model_runner`."""

    def areal_reload(self: Any, weights_path: str) -> None:
        """Load weights from a folder, and pack a tied output matrix again."""
        self.reload_weights(weights_path=weights_path)
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(model.config, "tie_word_embeddings", False) and head.weight.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)
