"""Listings of a bucket as one that has not heard yet of the last changes would answer them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qs
from xml.etree import ElementTree

__all__ = ["keys_of", "with_removed", "without_new"]

_NAMESPACE: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def _tag(element: ElementTree.Element) -> str:
    return element.tag.removeprefix(_NAMESPACE)


def _text(element: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in element if _tag(child) == name), "")


def keys_of(document: bytes) -> list[str]:
    """Keys that a request to remove several objects names."""
    root = ElementTree.fromstring(document)
    return [_text(child, "Key") for child in root if _tag(child) == "Object"]


def without_new(answer: bytes, made: Collection[str]) -> bytes:
    """A listing without objects that were made; ``made`` are their paths, with the bucket."""
    root = ElementTree.fromstring(answer)
    bucket = _text(root, "Name")
    for child in list(root):
        if _tag(child) == "Contents" and f"/{bucket}/{_text(child, 'Key')}" in made:
            root.remove(child)
        if _tag(child) == "CommonPrefixes":
            prefix = f"/{bucket}/{_text(child, 'Prefix')}"
            if any(path.startswith(prefix) for path in made):
                root.remove(child)
    return _document(root)


def with_removed(answer: bytes, query: str, path: str, removed: Collection[str]) -> bytes:
    """A listing that still has objects that were removed."""
    root = ElementTree.fromstring(answer)
    asked = parse_qs(query, keep_blank_values=True)
    prefix = asked.get("prefix", [""])[0]
    delimiter = asked.get("delimiter", [""])[0]
    bucket = path.strip("/")
    there = {_text(child, "Key") for child in root if _tag(child) == "Contents"}
    above = {_text(child, "Prefix") for child in root if _tag(child) == "CommonPrefixes"}
    for full in sorted(removed):
        key = full.removeprefix(f"/{bucket}/")
        if not key.startswith(prefix) or key in there:
            continue
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if found:
            above_it = f"{prefix}{head}{delimiter}"
            if above_it not in above:
                above.add(above_it)
                _add(root, "CommonPrefixes", {"Prefix": above_it})
            continue
        contents = {"Key": key, "LastModified": "2020-01-01T00:00:00.000Z", "ETag": '"0"', "Size": "1"}
        _add(root, "Contents", contents)
    return _document(root)


def _add(root: ElementTree.Element, name: str, children: dict[str, str]) -> None:
    element = ElementTree.SubElement(root, root.tag.replace(_tag(root), name))
    for child, text in children.items():
        ElementTree.SubElement(element, root.tag.replace(_tag(root), child)).text = text


def _document(root: ElementTree.Element) -> bytes:
    ElementTree.register_namespace("", _NAMESPACE.strip("{}"))
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
