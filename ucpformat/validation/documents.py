"""The JSON documents of a checkpoint as far as they can be read; level *structure* (SPEC section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import loads
from ucpformat.model.envelope import check_version
from ucpformat.model.index_part import IndexPart
from ucpformat.model.names import check_key
from ucpformat.model.references import DocumentRef, PackList
from ucpformat.model.root import MAX_DOCUMENT_BYTES, ROOT_KEY, Root
from ucpformat.model.state import StateDocument
from ucpformat.model.values import decode
from ucpformat.storage.reading.documents import read_document, read_root

if TYPE_CHECKING:
    from ucpformat.errors import Problem
    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.findings import Findings

__all__ = ["Documents"]


class Documents:
    """Reads the root and what it refers to, applies the schemas, and remembers which documents are sound.

    ``envelope`` is the root document once its envelope and version are sound, ``root`` what is read from it once it
    meets its schema, with ``problems`` of its content. ``values`` holds the documents that meet the schema by which
    they are referred to, by that and their key; ``packs`` are the pack lists among them, and ``parts`` and ``states``
    hold, by key, those index parts and state documents among them that have no problems of their own. ``nbytes`` is
    how long the documents are that were read.
    """

    def __init__(self, store: Objects, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._stored: dict[str, DocumentRef] = {}
        """What was read of each document, as a reference to it should say."""
        self.root_data: bytes = b""
        self.envelope: dict[str, JsonValue] | None = None
        self.root: Root | None = None
        self.problems: tuple[Problem, ...] = ()
        self.values: dict[tuple[str, str], JsonValue] = {}
        self.packs: dict[str, PackList] = {}
        self.parts: dict[str, IndexPart] = {}
        self.states: dict[str, StateDocument] = {}
        self.nbytes = 0
        with findings.collecting():
            self._read()

    def _read(self) -> None:
        self.root_data = read_root(self._store)
        self.nbytes += len(self.root_data)
        value = loads(self.root_data, at=ROOT_KEY)
        self.envelope = check_version(value, at=ROOT_KEY)
        try:
            self.root, self.problems = Root.structure(value, at=ROOT_KEY)
        except UcpError as refusal:
            self._findings.extend(_broken("root", value, ROOT_KEY) or [refusal.problem()])
            return
        for place, reference in self.root.references():
            schema = place.rpartition("/")[2]
            if schema != "table":
                with self._findings.collecting():
                    self._read_document(schema, reference)

    def _read_document(self, schema: str, reference: DocumentRef) -> None:
        check_key(reference.key, ROOT_KEY)
        size = self._store.size(reference.key)
        if size is None:
            raise error("UCP-E-MISSING", "the object is missing", at=reference.key)
        if size > MAX_DOCUMENT_BYTES:
            raise error("UCP-E-LIMIT", f"{size} bytes exceed {MAX_DOCUMENT_BYTES}", at=reference.key)
        self.nbytes += size
        data = self._store.read(reference.key, 0, size)
        self._stored[reference.key] = DocumentRef.to(reference.key, data)
        value = loads(data, at=reference.key)
        found: list[Problem] = []
        try:
            if schema == "index":
                self.parts[reference.key] = IndexPart.from_json(value, at=reference.key)
            elif schema == "state":
                state = StateDocument.from_json(value, at=reference.key)
                for place, tagged in state.tagged_values(at=reference.key):
                    decode(tagged, at=place)
                self.states[reference.key] = state
            else:
                self.packs[reference.key] = PackList.structure(value, at=reference.key)
        except UcpError:
            found = _broken(schema, value, reference.key)
        self._findings.extend(found)
        if not found:
            self.values[schema, reference.key] = value

    def check(self, schema: str, reference: DocumentRef) -> bool:
        """Collect what is wrong with length and digest; return whether the document meets ``schema``."""
        with self._findings.collecting() as outcome:
            stored = self._stored.get(reference.key)
            if stored is None or reference.length > MAX_DOCUMENT_BYTES:
                read_document(self._store, reference)  # raises what it was not read for
            else:
                reference.require(stored)
        if outcome.has_refused:
            self._findings.damage.documents[reference.key] = None
        return (schema, reference.key) in self.values


def _broken(schema: str, value: JsonValue, at: str) -> list[Problem]:
    """Return what the schema has against a document that its strict parser refuses.

    What that accepts meets the schema (tests/schema/test_equivalence.py), which takes a hundred times as long.
    """
    from ucpformat.schema import problems

    return list(problems(schema, value, at))
