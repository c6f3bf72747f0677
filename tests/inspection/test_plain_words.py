from __future__ import annotations

import numpy as np
import pytest

from ucpformat.inspection.plain_words import in_words
from ucpformat.model.values import NamedValue, encode


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        ((0.9, 0.999), "(0.9, 0.999)"),
        ((1,), "(1,)"),
        ([1, 2.0, "é"], "[1, 2.0, 'é']"),
        ({"a": (1, 2)}, "{'a': (1, 2)}"),
        ({1: True}, "{1: True}"),
        ({2}, "set(2)"),
        (float("inf"), "inf"),
        (b"abc", "3 bytes"),
        (np.zeros((2, 3), np.int16), "array of int16, 2x3"),
        (NamedValue("torch.Size", [1]), "torch.Size([1])"),
    ],
)
def test_values_as_a_person_writes_them(value: object, words: str) -> None:
    assert in_words(encode(value, at="x")) == words


def test_what_cannot_be_decoded_is_shown_as_it_is() -> None:
    assert in_words({"$float": "one"}) == '{"$float": "one"}'
