"""Worker extension of a vLLM server; see `--worker-extension-cls`. Nothing of this project is imported.

vLLM packs the output matrix for its CPU kernels. Where that matrix is tied to the embedding, loading weights replaces
the embedding and leaves the packed copy as it was. Methods that take weights in buckets answer with a report, or with
an `error`: an exception would be an answer without its cause.
"""

import base64
import pickle
from collections.abc import Callable
from typing import Any

from areal_weights import ReceivedWeights, join_group, receive_bucket


class Reload:
    """Mixed into vLLM's worker, which has `reload_weights`, `model_runner`, `vllm_config`, `rank` and `device`."""

    def areal_reload(self: Any, weights_path: str) -> None:
        """Load weights from a folder, and pack a tied output matrix again."""
        self.reload_weights(weights_path=weights_path)
        self._areal_state()["loading"] = False  # of a version whose sender was gone before its last bucket
        self._areal_pack()

    def areal_join(
        self: Any, address: str, port: int, ranks: int, name: str, backend: str, seconds: float
    ) -> dict[str, Any]:
        """Join a process group with the sender of weights, which is its rank 0."""

        def join() -> dict[str, Any]:
            self._areal_state()["groups"][name] = join_group(
                address, port, 1 + self.rank, ranks, name, backend, seconds
            )
            return {}

        return _answer(join)

    def areal_leave(self: Any, name: str) -> None:
        """Leave a process group."""
        self._areal_state()["groups"].pop(name, None)

    def areal_receive(
        self: Any, group: str, names: list[str], dtypes: list[str], shapes: list[list[int]]
    ) -> dict[str, Any]:
        """Take a bucket that is broadcast to a group."""
        return _answer(
            lambda: self._areal_take(
                receive_bucket(self._areal_state()["groups"][group], names, dtypes, shapes, self.device)
            )
        )

    def areal_map(self: Any, handles: list[str]) -> dict[str, Any]:
        """Take a bucket in shared memory; each process has a handle of its own."""
        # As trusted as the orders that change weights
        return _answer(lambda: self._areal_take(pickle.loads(base64.b64decode(handles[self.rank]))))  # noqa: S301

    def _areal_state(self: Any) -> dict[str, Any]:
        # The changed tensors alone would leave the other parts of a fused layer empty: vLLM makes the tensors of a
        # layer anew.
        state: dict[str, Any] = self.__dict__.setdefault(
            "areal_state", {"groups": {}, "received": ReceivedWeights(loads_all=True), "loading": False}
        )
        return state

    def _areal_take(self: Any, weights: list[Any]) -> dict[str, Any]:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload.layerwise import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        state, model = self._areal_state(), self.model_runner.get_model()
        received: ReceivedWeights = state["received"]
        with set_current_vllm_config(self.vllm_config):
            try:
                if loaded := received.take(weights):
                    if not state["loading"]:
                        initialize_layerwise_reload(model)
                        state["loading"] = True
                    model.load_weights([(name, tensor.to(self.device)) for name, tensor in loaded])
                ended = bool(received.report)
            except BaseException:
                ended = True
                raise
            finally:
                if ended and state["loading"]:
                    state["loading"] = False
                    finalize_layerwise_reload(model, self.vllm_config.model_config)
        if ended:
            self.model_runner.reset_lora_state()
            self.model_runner.reset_encoder_cache()
            self.model_runner.reset_mm_cache()
            self._areal_pack()
        return received.report

    def _areal_pack(self: Any) -> None:
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if (
            head is not None
            and getattr(model.config, "tie_word_embeddings", False)
            and head.weight.device.type == "cpu"
        ):
            head.quant_method.process_weights_after_loading(head)


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - reported
        return {"error": f"{type(error).__name__}: {error}"}
