"""Logits in a file: the same bits come back, the newest take the place of the oldest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attncheck.model.logits_memory import LogitsFile, LogitsMemory


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 4, 8, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_same_bits_come_back(dtype: torch.dtype) -> None:
    file, logits_BTV = LogitsFile(), drawn(1, dtype)
    logits_BTV[0, 0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    file[("a", ())] = logits_BTV[:, ::2]
    found_BTV = file[("a", ())]
    assert found_BTV.dtype == dtype
    assert torch.equal(
        found_BTV.view(torch.uint8), logits_BTV[:, ::2].contiguous().view(torch.uint8)
    )


def test_the_newest_take_the_place_of_the_oldest() -> None:
    file = LogitsFile()
    file[(0, ())] = drawn(0)
    file.limit = 3 * drawn(0).nbytes
    for seed in range(1, 5):
        file[(seed, ())] = drawn(seed)
    assert list(file.places) == [(2, ()), (3, ()), (4, ())]
    assert all(torch.equal(file[seed, ()], drawn(seed)) for seed in (2, 3, 4))


def test_what_is_larger_than_the_file_is_forgotten() -> None:
    memory = LogitsMemory()
    memory.kept[(0, ())] = drawn(0)
    memory.put_aside()
    memory.aside.limit = 10
    memory.kept[(1, ())] = drawn(1)
    memory.put_aside()
    assert torch.equal(memory[0, ()], drawn(0))
    with pytest.raises(KeyError):
        memory[1, ()]


def test_what_ran_with_a_fault_is_forgotten_in_the_file_too() -> None:
    memory, faults = LogitsMemory(), ((1, "a fault"),)
    memory.kept = memory.kept | {("a", ()): drawn(0), ("a", faults): drawn(1)}
    memory.put_aside()
    memory.forget_faults(faults)
    assert list(memory.aside.places) == [("a", ())]
