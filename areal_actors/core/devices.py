"""Detection of CUDA devices through the driver, without importing torch."""

from __future__ import annotations

import ctypes

import msgspec

DRIVER = "libcuda.so.1"


class CudaDevices(msgspec.Struct, frozen=True):
    """Number of CUDA devices that this process may use, and the reason."""

    count: int
    reason: str


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
    return CudaDevices(count.value, f"{count.value} CUDA device{'s' if count.value > 1 else ''}")
