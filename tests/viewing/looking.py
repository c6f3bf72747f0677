"""What tests do with the page: serve it, search, open a tensor, read a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import ucpformat as ucp
from tests.viewing.chromium import CHROMIUM, Chromium
from ucpformat.viewing.server import PageServer

__all__ = ["HOSTILE", "MARKS", "change", "open_tensor", "rows", "shown", "window"]

MARKS = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; Debian's package is `chromium`"),
    pytest.mark.browser,
    pytest.mark.xdist_group("chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
"""Of every module with tests in a browser."""
HOSTILE = (
    "<script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "\u202egnp.exe",
    "n" * 1024,
    "__proto__",
    "toString",
    "." * 1024,
)


@contextmanager
def shown(
    browser: Chromium,
    *paths: Path,
    compared: int | None = None,
    plan: Mapping[str, object] | None = None,
    log: Mapping[str, object] | None = None,
) -> Iterator[Chromium]:
    """The page of checkpoints; in the end it has said nothing to the console, and asked nobody else."""
    checkpoints = [(path.name, ucp.open(path)) for path in paths]
    browser.log.clear()
    browser.requests.clear()
    with PageServer(checkpoints, compared=compared, plan=plan, log=log) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            browser.go(server.url)
            browser.wait(f"location.href === {json.dumps(server.url)} && document.body.dataset.ready")
            yield browser
            assert browser.log == []
            assert {url for url in browser.requests if not url.startswith(server.url)} <= {"about:blank"}
        finally:
            browser.go("about:blank")
            server.shutdown()
            thread.join()
            for _, checkpoint in checkpoints:
                checkpoint.close()


def rows(browser: Chromium) -> list[str]:
    found: list[str] = browser.value(
        "[...document.querySelectorAll('.row .name')].map((row) => row.textContent)"
    )
    return found


def open_tensor(browser: Chromium, search: str) -> list[list[str]]:
    """Search for a tensor, open it with the keyboard, and return the window of its values."""
    browser.type("#search", search)
    browser.wait("document.querySelectorAll('.row').length === 1")
    browser.key("Enter")
    browser.key("Enter")
    return window(browser)


def window(browser: Chromium) -> list[list[str]]:
    browser.wait("document.querySelector('table.values, [data-panel=values] .error')")
    found: list[list[str]] = browser.value(
        "[...document.querySelectorAll('table.values tbody tr')]"
        ".map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )
    return found


def change(browser: Chromium, selector: str, value: int) -> None:
    """Give an input a value, as a person does who leaves it then."""
    browser.value(
        f"(() => {{ const input = document.querySelector({json.dumps(selector)}); input.value = {value};"
        " for (const kind of ['input', 'change']) input.dispatchEvent(new Event(kind)); })()"
    )
