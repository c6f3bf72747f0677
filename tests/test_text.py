from __future__ import annotations

import pytest

from ucpformat.text import shortened


@pytest.mark.parametrize(
    ("text", "width", "found"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "ab…efg"),
        ("abcdefg", 3, "a…g"),
        ("abc", 2, "ab"),
        ("abc", 0, ""),
    ],
)
def test_long_texts_lose_their_middle(text: str, width: int, found: str) -> None:
    assert shortened(text, width) == found
    assert len(found) <= width
