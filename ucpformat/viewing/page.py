"""The page that shows checkpoints: its parts as files of their own, or all of them in one file.

Its Content-Security-Policy allows the scripts and the style that are part of it, requests to where it comes from, and
nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ucpformat.copying import reached_objects
from ucpformat.errors import error
from ucpformat.model.root import ROOT_KEY
from ucpformat.patterns import load_patterns, pattern_names
from ucpformat.viewing.bundle import bundle, source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ucpformat.inspection.statistics import SlotStatistics
    from ucpformat.reader import Checkpoint

__all__ = ["carried", "origin_of", "policy", "ready_made_patterns", "remote", "served_parts", "single_page"]

_HEAD: Final = "<!-- head -->"
_SCRIPTS: Final = "<!-- scripts -->"
_DOCUMENTS: Final = ("index/", ROOT_KEY)
"""How keys of what a page carries begin: documents and tables, and no bytes of tensors."""


def policy(script: str, style: str, worker: str, origins: Iterable[str] = ()) -> str:
    """Return a Content-Security-Policy with these sources of scripts, styles and workers, and no others.

    Requests go to where the page comes from, and to ``origins``.
    """
    rules = {
        "default-src": "'none'",
        "script-src": script,
        "style-src": style,
        "worker-src": worker,
        "connect-src": " ".join(["'self'", *sorted(set(origins))]),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def remote(
    url: str, label: str, statistics: Mapping[tuple[str, str], SlotStatistics] | None = None
) -> dict[str, object]:
    """Return a checkpoint that a page reads from a URL, as it carries it."""
    return {
        "label": label,
        "source": {"url": url if url.endswith("/") else f"{url}/"},
        "statistics": _by_atom(statistics),
    }


def origin_of(url: str) -> str:
    """Return the origin of a URL as policies write it.

    Raises:
        UcpError: ``UCP-E-MISMATCH``: it is no address over HTTP, or one with a query, which objects below it lack.
    """
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise error(
            "UCP-E-MISMATCH", "give an http or https address of the checkpoint, without a query", at=url
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if not re.fullmatch(r"[A-Za-z0-9.:_\[\]-]+", host):
        raise error("UCP-E-MISMATCH", "the host has characters that a policy cannot name", at=url)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def ready_made_patterns() -> dict[str, object]:
    """Return the pattern documents that come with the package, by name."""
    return {name: load_patterns(name).to_json() for name in pattern_names()}


def served_parts() -> dict[str, tuple[str, bytes]]:
    """Return the parts of the page as a server has them: media types and bytes, by name; the page's own is empty."""
    page = source("view/page.html")
    page = page.replace(_HEAD, '<link rel="stylesheet" href="page.css">')
    page = page.replace(_SCRIPTS, '<script src="page.js"></script>')
    return {
        "": ("text/html; charset=utf-8", page.encode()),
        "page.css": ("text/css; charset=utf-8", source("view/page.css").encode()),
        "page.js": ("text/javascript; charset=utf-8", bundle("view/page.mjs").encode()),
        "worker.js": ("text/javascript; charset=utf-8", bundle("view/worker.mjs").encode()),
    }


def single_page(
    checkpoints: Sequence[Mapping[str, object]],
    *,
    compared: int | None = None,
    plan: Mapping[str, object] | None = None,
    origins: Iterable[str] = (),
) -> str:
    """Return the page as one file that shows ``checkpoints``, each as `carried` or `remote` makes it.

    ``compared`` is the place of the checkpoint with which the first is compared; ``plan`` is what
    `planning.Movements.to_json` says of the first; ``origins`` are those of URLs.
    """
    style = f"\n{source('view/page.css')}"
    script = f"\n{bundle('view/page.mjs')}"
    rules = policy(_hash(script), _hash(style), "blob:", origins)
    configuration = {
        "checkpoints": checkpoints,
        "compared": compared,
        "plan": plan,
        "patterns": ready_made_patterns(),
    }
    head = f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n<style>{style}</style>'
    scripts = (
        f'<script type="application/json" id="configuration">{_json(configuration)}</script>\n'
        f'<script type="application/json" id="worker">{_json(bundle("view/worker.mjs"))}</script>\n'
        f"<script>{script}</script>"
    )
    return source("view/page.html").replace(_HEAD, head).replace(_SCRIPTS, scripts)


def carried(
    checkpoint: Checkpoint,
    label: str,
    statistics: Mapping[tuple[str, str], SlotStatistics] | None = None,
    previews: Mapping[str, Mapping[str, object]] | None = None,
) -> dict[str, object]:
    """Return a checkpoint as a page carries it: its documents, and statistics and previews of tensors if given."""
    objects: dict[str, dict[str, object]] = {}
    for key in (ROOT_KEY, *reached_objects(checkpoint)):
        size = checkpoint.store.size(key)
        if size is None:
            continue
        objects[key] = {"length": size}
        if key.startswith(_DOCUMENTS):
            objects[key]["deflated"] = _deflated(checkpoint.store.read(key, 0, size))
    source = {"objects": objects, "previews": previews or {}}
    return {"label": label, "source": source, "statistics": _by_atom(statistics)}


def _by_atom(statistics: Mapping[tuple[str, str], SlotStatistics] | None) -> dict[str, dict[str, object]]:
    known: dict[str, dict[str, object]] = {}
    for (atom, slot), found in (statistics or {}).items():
        known.setdefault(atom, {})[slot] = _statistics(found)
    return known


def _statistics(found: SlotStatistics) -> dict[str, object]:
    """Return statistics in the form in which the page makes them itself; these magnitudes have no signs."""
    told = found.to_json()
    counts = sorted(found.magnitudes.items())
    return {
        "count": found.count,
        "nan": found.nan,
        "inf": found.inf,
        "zeros": found.zeros,
        "minimum": told["min"],
        "maximum": told["max"],
        "mean": told["mean"],
        "norm": told["norm"],
        "positive": [[power, count] for power, count in counts],
        "negative": [],
    }


def _deflated(data: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: object) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
