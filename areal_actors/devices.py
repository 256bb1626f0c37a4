"""Is there a CUDA device? Asked of the driver, so that no process loads torch to find out."""

from __future__ import annotations

import ctypes

import msgspec

DRIVER = "libcuda.so.1"


class CudaDevices(msgspec.Struct, frozen=True):
    """How many CUDA devices this process may use, and how that is known."""

    count: int
    reason: str


def detect_cuda(driver: str = DRIVER) -> CudaDevices:
    """Ask the NVIDIA driver; `CUDA_VISIBLE_DEVICES` holds."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return CudaDevices(0, f"no CUDA device: {driver} not found")
    if code := cuda.cuInit(0):
        return CudaDevices(0, f"no CUDA device: cuInit of {driver} answered {code}")
    count = ctypes.c_int()
    if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return CudaDevices(0, f"no CUDA device: cuDeviceGetCount of {driver} answered {code}")
    if not count.value:
        return CudaDevices(0, f"no CUDA device: {driver} counts 0")
    return CudaDevices(count.value, f"{count.value} CUDA device{'s' if count.value > 1 else ''}")
