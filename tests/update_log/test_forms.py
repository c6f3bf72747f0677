"""Entries hold any gradient to the last bit, in the form that takes fewest bytes, and sums do not depend on splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.update_log.logs import EPOCH
from ucpformat.geometry import Box
from ucpformat.storage.host_memory import selection
from ucpformat.update_log.batch import PREFIX_BYTES, parse_header, read_prefix
from ucpformat.update_log.documents import LoggedTensor, LogPiece
from ucpformat.update_log.drafts import BatchDraft, Captured, StepDraft, batch_bytes
from ucpformat.update_log.forms import places_of, values_of
from ucpformat.update_log.sums import box_sum

TYPES = ("float16", "float32", "float64", "int8", "complex128")


@st.composite
def gradients(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of any bits, most of which may be zero."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    native = np.dtype(draw(st.sampled_from(TYPES)))
    if draw(st.booleans()):
        shape = (draw(st.sampled_from([65535, 65536, 65537, 140000])),)
    size = int(np.prod(shape, dtype=int)) * native.itemsize
    data = np.zeros(size, np.uint8)
    places = draw(st.lists(st.integers(0, size - 1), max_size=40))
    for place in places:
        data[place] = draw(st.integers(0, 255))
    return data.view(native).reshape(shape)


MOSTLY_ZEROS = np.zeros(70_000, np.float32)
MOSTLY_ZEROS[[3, 69_999]] = -0.0, np.nan


@given(gradient=gradients())
@example(gradient=MOSTLY_ZEROS)
def test_a_gradient_comes_back_to_the_last_bit(gradient: np.ndarray[Any, Any]) -> None:
    shape = gradient.shape
    name = gradient.dtype.name
    tensor = LoggedTensor("w", "gradient", name, shape)
    piece = LogPiece(0, 0, (0,) * len(shape), shape)
    epoch = replace(EPOCH, ranks=1, tensors=(tensor,), pieces=(piece,))
    draft = BatchDraft(0, [StepDraft([Captured(0, gradient.copy())], ({"lr": 1},))], {}, ())
    data = b"".join(batch_bytes(draft, epoch, 0, "sha256:" + "0" * 64)[0])
    prefix = read_prefix(data[:PREFIX_BYTES], at="b")
    assert prefix is not None
    start = PREFIX_BYTES + prefix.header_bytes
    header = parse_header(data[PREFIX_BYTES:start], prefix, at="b")
    (step,) = header.steps
    assert len(data) == start + step.length
    (entry,) = step.entries
    payload = memoryview(data)[start:]
    found = values_of(entry, payload, shape, gradient.dtype)
    if entry.form == "sparse":
        whole = np.zeros(gradient.size, gradient.dtype)
        whole[places_of(entry, payload, gradient.size, at="b")] = found
        found = whole.reshape(shape)
    assert found.tobytes() == gradient.tobytes()
    assert step.length <= gradient.nbytes


@given(gradient=gradients(), data=st.data())
def test_sums_add_up_under_any_split(gradient: np.ndarray[Any, Any], data: st.DataObject) -> None:
    shape = gradient.shape
    boxes = [Box.whole(shape)]
    for _ in range(3):
        box = boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
        dims = [dim for dim, extent in enumerate(box.shape) if extent > 1]
        if not dims:
            boxes.append(box)
            continue
        dim = data.draw(st.sampled_from(dims))
        at = data.draw(st.integers(1, box.shape[dim] - 1))
        for first, extent in ((box.offset[dim], at), (box.offset[dim] + at, box.shape[dim] - at)):
            offset = (*box.offset[:dim], first, *box.offset[dim + 1 :])
            boxes.append(Box(offset, (*box.shape[:dim], extent, *box.shape[dim + 1 :])))
    whole = box_sum(gradient, Box.whole(shape), shape)
    parts = [box_sum(gradient[selection(box, Box.whole(shape))], box, shape) for box in boxes]
    assert sum(parts) % 2**64 == whole
    if gradient.size > 1:
        other = gradient.copy()
        bits = other.reshape(-1).view(np.uint8)
        bits[data.draw(st.integers(0, bits.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert box_sum(other, Box.whole(shape), shape) != whole


def test_a_sum_is_what_the_text_says() -> None:
    """Known values of the finalizer of SplitMix64: implementations agree on them."""
    assert f"{box_sum(np.array([1.0, -2.0], np.float32), Box((0,), (2,)), (2,)):016x}" == _by_hand(
        [1.0, -2.0]
    )


def _by_hand(values: list[float]) -> str:
    mask = (1 << 64) - 1

    def mixed(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    bits = [int(np.array(value, np.float32).view(np.uint32)) for value in values]
    return f"{sum(mixed(mixed(i + 1) ^ v) for i, v in enumerate(bits)) & mask:016x}"
