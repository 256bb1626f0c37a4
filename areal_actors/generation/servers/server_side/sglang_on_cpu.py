"""Starts an SGLang server on a machine without a GPU, with packages from PyPI only.

Run as a program by the interpreter of the server's environment; nothing of this project is imported. SGLang has a
platform for CPUs that needs a compiled `sgl_kernel`, which is not on PyPI. This program registers a platform that takes
SGLang's native torch path instead, and stand-ins for imports of GPU libraries that this path never calls; page-locked
memory, which adapters ask for and which only a GPU's driver gives, is ordinary memory. SGLang spawns its scheduler as a
new interpreter that imports this file again, so all of it happens at import. The methods of the platform are SGLang's.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault(
    "TORCHDYNAMO_DISABLE", "1"
)  # compiling needs a C++ compiler or Triton; nothing is large enough to gain from it

import torch


class _Absent:
    """Stands for a class of an absent library: base class, annotation and constant."""

    def __init__(self, *values: Any, **_: Any) -> None:
        self.value = values[0] if values else None

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, _: Any) -> type:
        return cls


class _AbsentModule(types.ModuleType):
    """Stands for a module of an absent library.

    A call of it is a decorator that changes nothing, such as `triton.jit`.
    """

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full not in sys.modules:
            is_class = name[:1].isupper() or name in ("constexpr", "dtype")
            setattr(
                self, name, type(name, (_Absent,), {"__module__": self.__name__}) if is_class else _AbsentModule(full)
            )
            return self.__dict__[name]
        return sys.modules[full]

    def __call__(self, *values: Any, **settings: Any) -> Any:
        if len(values) == 1 and callable(values[0]) and not settings:
            return values[0]
        return lambda function: function

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(())


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `triton` and everything in it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "triton":
            vars(module).update(
                __version__="3.0.0",
                cdiv=lambda count, size: -(count // -size),
                next_power_of_2=lambda number: 1 << (number - 1).bit_length() if number > 0 else 1,
            )


if importlib.util.find_spec("triton") is None:
    sys.meta_path.insert(0, _AbsentFinder())
# PyPI's torchvision is linked to CUDA: on a torch for CPUs its operators are missing, and it cannot be imported without
# them.
_torchvision = torch.library.Library("torchvision", "DEF")
for _operator in ("nms", "qnms"):
    _torchvision.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _without_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    # There is none
    def make_tensor(*values: Any, pin_memory: bool = False, **settings: Any) -> torch.Tensor:  # noqa: ARG001
        return make(*values, **settings)

    return make_tensor


for _name in ("arange", "empty", "ones", "tensor", "zeros"):
    setattr(torch, _name, _without_pinning(getattr(torch, _name)))
torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]

from sglang.srt import platforms
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class NativeCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU on which every layer takes SGLang's native torch implementation."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def empty_cache(self) -> None:
        """Does nothing: a CPU has no cache of memory, and SGLang's garbage collection takes 0.3 s a version."""

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator


platforms._current_platform = NativeCpuPlatform()

from sglang.srt.mem_cache.pool_host import common

common.ALLOC_MEMORY_FUNCS["cpu"] = (
    common.alloc_with_pin_memory
)  # else the record of routed experts asks a GPU's driver for memory

if __name__ == "__mp_main__":
    import sglang_weights

    sglang_weights.receive()

if __name__ == "__main__":
    import sglang_adapters
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    sglang_adapters.mend()
    run_server(prepare_server_args(sys.argv[1:]))
