"""Tensors of a CUDA device: saved, loaded and copied in the background, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat as ucp

MIB = 1 << 20
DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def bits(tensor: torch.Tensor) -> bytes:
    """The logical bytes of a tensor, in row-major order."""
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy().tobytes()


def state_of_all_kinds() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state = {
        str(dtype).removeprefix("torch."): (torch.randn(33, 65, device="cuda") * 3).to(dtype)
        for dtype in DTYPES
    }
    base = torch.randn(64, 96, device="cuda")
    state["transposed"] = base.t()
    state["columns"] = base[:, 7:50]
    state["every other row"] = base[::2]
    state["conjugated"] = torch.randn(9, 5, device="cuda", dtype=torch.complex64).conj()
    state["scalar"] = torch.tensor(2.5, device="cuda")
    state["empty"] = torch.empty(0, 4, device="cuda")
    state["large"] = torch.randn(48 * MIB // 4, device="cuda")
    return state


@pytest.mark.parametrize("storage", ["packed", "plain"])
@pytest.mark.parametrize("compressor", [None, ucp.Compressor("zstd", {"level": 1, "checksum": False})])
def test_every_kind_of_tensor_comes_back(
    tmp_path: Path, storage: Any, compressor: ucp.Compressor | None
) -> None:
    state = state_of_all_kinds()
    ucp.save(tmp_path / "a.ucp", {"model": state}, storage=storage, compressor=compressor)
    assert ucp.validate(tmp_path / "a.ucp") == []
    on_host = ucp.load(tmp_path / "a.ucp", tensors="torch")["model"]
    on_device = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    ucp.load(tmp_path / "a.ucp", {"model": on_device})
    for name, tensor in state.items():
        assert bits(on_host[name]) == bits(tensor), name
        assert on_device[name].is_cuda
        assert bits(on_device[name]) == bits(tensor), name


def test_views_of_one_buffer_are_filled_and_nothing_beside_them(tmp_path: Path) -> None:
    rows, columns = torch.randn(32, 16, device="cuda"), torch.randn(40, 8, device="cuda")
    ucp.save(tmp_path / "a.ucp", {"rows": rows, "columns": columns})
    buffer = torch.full((40, 40), 7.0, device="cuda")
    ucp.load(tmp_path / "a.ucp", {"rows": buffer[4:36, 20:36], "columns": buffer[:, :8]})
    expected = torch.full((40, 40), 7.0)
    expected[4:36, 20:36], expected[:, :8] = rows.cpu(), columns.cpu()
    assert torch.equal(buffer.cpu(), expected)


def test_a_cast_is_made_while_loading(tmp_path: Path) -> None:
    weight = torch.randn(1000, 30, device="cuda")
    ucp.save(tmp_path / "a.ucp", {"w": weight})
    target = {"w": torch.zeros(1000, 30, device="cuda", dtype=torch.bfloat16)}
    ucp.load(tmp_path / "a.ucp", target, cast=True)
    assert torch.equal(target["w"], weight.to(torch.bfloat16))


def test_what_the_device_does_after_the_call_is_not_in_the_snapshot(tmp_path: Path) -> None:
    """Large enough that the copy to the host is under way when the call returns."""
    weight = torch.randn(512 * MIB // 4, device="cuda")
    strided = torch.randn(4096, 4096, device="cuda").t()

    def seen(large: torch.Tensor = weight, small: torch.Tensor = strided) -> tuple[bytes, ...]:
        return bits(large[: MIB // 4]), bits(large[-MIB // 4 :]), bits(small)

    before = seen()
    with ucp.AsyncSaver() as saver:
        for step in range(3):  # the second and third use the memory of the first
            saving = saver.save(tmp_path / f"{step}.ucp", {"w": weight, "s": strided})
            weight.add_(1)
            strided.zero_()
            saving.wait()
            found = ucp.load(tmp_path / f"{step}.ucp", tensors="torch")
            assert seen(found["w"], found["s"]) == before
            before = seen()


def test_with_a_fence_the_caller_waits_before_it_changes_anything(tmp_path: Path) -> None:
    weight = torch.randn(512 * MIB // 4, device="cuda")
    before = weight.clone()
    with ucp.AsyncSaver(fence="staged") as saver:
        saving = saver.save(tmp_path / "a.ucp", {"w": weight})
        unrelated = torch.randn(4096, 4096, device="cuda")
        unrelated @ unrelated
        saving.staged()
        weight.zero_()
        saving.wait()
    assert torch.equal(ucp.load(tmp_path / "a.ucp", tensors="torch")["w"], before.cpu())


def test_memory_that_the_caller_lets_go_of_is_copied_first(tmp_path: Path) -> None:
    """The allocator may hand a freed block to the next tensor while its copy is still under way."""
    with ucp.AsyncSaver() as saver:
        state = {"w": torch.full((256 * MIB // 4,), 3.0, device="cuda")}
        saving = saver.save(tmp_path / "a.ucp", state)
        del state
        other = [torch.full((256 * MIB // 4,), 9.0, device="cuda") for _ in range(4)]
        saving.wait()
        del other
    assert bool((ucp.load(tmp_path / "a.ucp", tensors="torch")["w"] == 3).all())


def test_an_arena_smaller_than_the_state_is_reused_part_by_part(tmp_path: Path) -> None:
    state = {str(index): torch.randn(8 * MIB // 4, device="cuda") for index in range(12)}
    with ucp.AsyncSaver(arena_bytes=32 * MIB) as saver:
        saving = saver.save(tmp_path / "a.ucp", state)
        expected = {name: tensor.cpu() for name, tensor in state.items()}
        for tensor in state.values():
            tensor.zero_()
        saving.wait()
        assert saver.arena_bytes <= 32 * MIB
    found = ucp.load(tmp_path / "a.ucp", tensors="torch")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_snapshot_lies_in_pinned_memory(tmp_path: Path) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "a.ucp", {"w": torch.ones(MIB, device="cuda")}).wait()
        memory = torch.from_numpy(saver._saver.arena.memory)
        assert memory.is_pinned()


def test_an_arena_of_host_tensors_is_made_anew_for_those_of_a_device(tmp_path: Path) -> None:
    """Copies into pageable memory would hold up the host, though nothing would be wrong."""
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "a.ucp", {"w": torch.ones(MIB)}).wait()
        saver.save(tmp_path / "b.ucp", {"w": torch.ones(MIB, device="cuda")}).wait()
        assert torch.from_numpy(saver._saver.arena.memory).is_pinned()
