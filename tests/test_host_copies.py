"""Copies of weights in the host's memory: whole, aligned, and in the memory of those that are not needed any more."""

from __future__ import annotations

import torch

from areal_actors.training.host_copies import ALIGNMENT, allocated_bytes, copy_to_host


def tensors(seed):
    torch.manual_seed(seed)
    return {
        "odd": torch.randn(3, 7).bfloat16(),
        "scalar": torch.randn(()),
        "ids": torch.arange(5) + seed,
        "wide": torch.randn(4, 3, 2, dtype=torch.float64),
    }


def test_copies_are_equal_and_share_no_memory_with_the_weights():
    weights = tensors(0)
    copies = copy_to_host(weights)
    assert all(
        torch.equal(copies[name], weight) and copies[name].dtype == weight.dtype for name, weight in weights.items()
    )
    assert all(
        copy.data_ptr() % ALIGNMENT == next(iter(copies.values())).data_ptr() % ALIGNMENT for copy in copies.values()
    )
    weights["ids"] += 1
    assert not torch.equal(copies["ids"], weights["ids"])


def test_a_copy_that_is_not_needed_any_more_is_overwritten():
    first = copy_to_host(tensors(0))
    places = {name: copy.data_ptr() for name, copy in first.items()}
    second = copy_to_host(tensors(1), first)
    assert {name: copy.data_ptr() for name, copy in second.items()} == places
    assert all(torch.equal(second[name], weight) for name, weight in tensors(1).items())


def test_the_room_is_that_of_page_locked_memory():
    assert [allocated_bytes(needed) for needed in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]
