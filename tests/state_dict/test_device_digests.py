"""Digests that are made where tensors lie (here on the CPU): equal for equal bytes, and for hardly anything else."""

from __future__ import annotations

import torch

from ucpformat.state_dict.tensors.device_digests import digests_on_device


def digest(tensor: torch.Tensor) -> bytes:
    (found,) = digests_on_device([tensor])
    return found


def test_equal_bytes_have_equal_digests_however_they_lie() -> None:
    torch.manual_seed(0)
    for kind in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        for shape in ((), (0,), (1,), (7,), (5, 9), (3, 4, 5)):
            whole = (torch.randn(shape) * 10).to(kind)
            padded = torch.cat([torch.zeros(3, dtype=kind), whole.reshape(-1)])[3:].reshape(shape)
            assert digest(whole) == digest(whole.clone()) == digest(padded)
            if whole.ndim == 2:
                assert digest(whole.T) == digest(whole.T.contiguous())
    tensors = [torch.arange(9.0), torch.arange(3)]
    assert digests_on_device(tensors) == [digest(one) for one in tensors]


def test_every_change_is_seen() -> None:
    """Each bit, each exchange of two places (a permutation has the same sum), and the length."""
    torch.manual_seed(1)
    words = torch.randint(-(2**62), 2**62, (9,))
    for place in range(9):
        for bit in range(64):
            changed = words.clone()
            changed[place] ^= (1 << bit) - (1 << 64 if bit == 63 else 0)
            assert digest(changed) != digest(words)
        for other in range(place):
            changed = words.clone()
            changed[place], changed[other] = words[other], words[place]
            assert digest(changed) != digest(words)
    raw = torch.randint(0, 255, (21,), dtype=torch.uint8)
    assert len({digest(raw[:size]) for size in range(22)}) == 22
    assert len({digest(torch.randperm(1000)) for _ in range(50)}) == 50


def test_large_tensors_go_block_by_block() -> None:
    large = torch.arange((1 << 23) + 5)
    other = large.clone()
    assert digest(large) == digest(other)
    other[1 << 23] += 1
    assert digest(large) != digest(other)
