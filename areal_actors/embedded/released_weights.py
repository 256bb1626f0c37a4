"""Weights of a model that sleeps: moved to the host's memory, and back into the same tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class ReleasedWeights:
    """Frees the storages of tensors on a device until `restore`.

    Every tensor stays what it is, and so do views of it.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Copy the storages to the host's memory and free them; each once, however many tensors share it."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        self._held: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        self.bytes = 0
        """Number of bytes that were freed."""
        for storage in storages.values():
            self._held.append((storage, storage.cpu() if storage.device.type != "cpu" else storage.clone()))  # type: ignore[no-untyped-call]
            self.bytes += storage.nbytes()
            storage.resize_(0)

    def restore(self) -> None:
        """Allocate the storages again and copy their values back."""
        for storage, copy in self._held:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        self._held.clear()
