"""Equal replicas have equal checksums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.probes.checksums import join, weight_checksum

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


def checksum(*tensors: torch.Tensor) -> float:
    """The checksum of some weights."""
    halves = weight_checksum(tensors)
    assert halves is not None
    return join(halves.tolist())


@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_it_is_the_sum_of_the_bit_patterns(seed: int, sizes: list[int]) -> None:
    """In single precision it is the sum of the 32-bit patterns modulo 2^32, so a float64 gauge holds it."""
    torch.manual_seed(seed)
    tensors = [torch.randn(size) for size in (1, *sizes)]
    patterns = [int(n) for tensor in tensors for n in tensor.view(torch.int32).tolist()]
    assert checksum(*tensors) == sum(patterns) % 2**32


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_changed_bit_changes_it(dtype: torch.dtype) -> None:
    """Replicas that differ in one weight by the least bit differ, whatever the dtype and the layout."""
    torch.manual_seed(0)
    weights = torch.randn(5, 7, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    assert checksum(weights) == checksum(weights.t().contiguous().t())
    for byte in range(weights.element_size()):
        changed = weights.clone()
        changed.view(torch.uint8)[3, byte] ^= 1
        assert checksum(weights) != checksum(changed), byte


def test_nan_has_a_checksum_too() -> None:
    """What is compared are bits, so replicas that are equally broken are equal."""
    assert checksum(torch.tensor([float("nan"), 1.0])) == checksum(torch.tensor([float("nan"), 1.0]))


def test_without_weights_there_is_none() -> None:
    """A model without parameters has nothing to compare."""
    assert weight_checksum([]) is None
