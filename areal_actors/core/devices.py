"""CUDA devices: detection through the driver, without torch, and the variables that assign them to processes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence

import msgspec

DRIVER = "libcuda.so.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY_FRACTION = "AREAL_MEMORY_FRACTION"
"""Environment variable with the share of each device's memory that a process may use; without it there is no limit."""


class CudaDevices(msgspec.Struct, frozen=True):
    """Number of CUDA devices that this process may use, and the reason."""

    count: int
    reason: str
    memory: tuple[int, ...] = ()
    """Bytes of memory of each device; empty if unknown."""


def detect_cuda(driver: str = DRIVER) -> CudaDevices:
    """Query the NVIDIA driver, which respects `CUDA_VISIBLE_DEVICES`."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return CudaDevices(0, f"no CUDA device: {driver} not found")
    if code := cuda.cuInit(0):
        return CudaDevices(0, f"no CUDA device: cuInit of {driver} returned {code}")
    count = ctypes.c_int()
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return CudaDevices(0, f"no CUDA device: cuDeviceGetCount of {driver} returned {code}")
    if not count.value:
        return CudaDevices(0, f"no CUDA device: cuDeviceGetCount of {driver} found 0")
    memory = tuple(_memory(cuda, number) for number in range(count.value))
    return CudaDevices(count.value, _device_count_text(count.value), memory if all(memory) else ())


def pretended_cuda(text: str) -> CudaDevices:
    """Returns the devices that `COUNT` or `COUNTxGIB` describes, as `8` or `8x80`, for a recipe of another machine.

    Raises:
        ValueError: the text is neither.
    """
    count, _, size = text.partition("x")
    number, gib = int(count), float(size or 0)
    if number < 0 or gib < 0 or ("x" in text and not gib):
        raise ValueError(text)
    if not number:
        return CudaDevices(0, "no CUDA device: --devices 0")
    return CudaDevices(number, f"{_device_count_text(number)} (--devices)", (int(gib * 2**30),) * number if gib else ())


def visibility(devices: Sequence[int], environment: Mapping[str, str] = os.environ) -> str:
    """Returns `CUDA_VISIBLE_DEVICES` for a child process with these devices, numbered as this process sees them."""
    listed = environment.get(VISIBLE)
    names = listed.split(",") if listed is not None else None
    return ",".join(names[device].strip() if names else str(device) for device in devices)


def memory_fraction(environment: Mapping[str, str] = os.environ) -> float:
    """Returns the share of each device's memory that this process may use; 1 without a limit."""
    return float(environment.get(MEMORY_FRACTION) or 1)


def _device_count_text(count: int) -> str:
    return f"{count} CUDA device{'s' if count > 1 else ''}"


def _memory(cuda: ctypes.CDLL, number: int) -> int:
    """Returns the bytes of memory of a device; 0 if the driver does not answer."""
    device, size = ctypes.c_int(), ctypes.c_size_t()
    if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device):
        return 0
    return size.value
