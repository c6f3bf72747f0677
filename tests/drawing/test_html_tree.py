from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from ucpformat.drawing.html_tree import html_page
from ucpformat.drawing.module_tree import AtomForm, SlotForm

_TAGS = {"div", "b", "span", "small", "details", "summary", "table", "tr", "th", "td"}


class Shown(HTMLParser):
    """What a browser would make of it: tags that are balanced, their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        assert {name for name, _ in attrs} <= {"style", "open"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.lists(st.text(min_size=1), max_size=20, unique=True), st.text())
def test_names_are_text_and_nothing_else(names: list[str], fact: str) -> None:
    slots = {"value": SlotForm("float32", (2,), 8)}
    page = html_page({"checkpoint": fact}, (AtomForm(name, slots) for name in names))
    shown = Shown(page)
    assert shown.text.isprintable()
    assert "javascript" not in page
    assert "http" not in page.replace("http", "", shown.text.count("http"))


def test_a_notebook_shows_what_a_checkpoint_holds(tmp_path: Path) -> None:
    state = {f"h.{n}.w": np.ones((4, 4), np.float32) for n in range(12)}
    ucp.save(tmp_path / "a", state | {"<script>alert(1)</script>\u202e": np.ones(1)}, step=3)
    with ucp.open(tmp_path / "a") as ckpt:
        shown = Shown(ckpt._repr_html_()).text
        assert "h.0..11.w" in shown
        assert r"<script>alert(1)</script>\u202e" in shown
        assert "12 alike" in shown
        assert ckpt.digest in shown
        assert "value float32 4x4" in Shown(ckpt["h.3.w"]._repr_html_()).text
        assert ckpt.fetched == 0


def test_a_wide_model_is_cut() -> None:
    slots = {"value": SlotForm("int8", (2,), 2)}
    page = html_page({}, (AtomForm(f"w{n}", {**slots, f"s{n}": slots["value"]}) for n in range(20_000)))
    assert "and 19950 others" in Shown(page).text
    assert len(page) < 50_000
