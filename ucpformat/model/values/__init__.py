r"""Tagged values (SPEC section 15.1): training state that is not a tensor, as JSON without loss or code.

A *value* is JSON. What JSON expresses in every language alike stands for itself:

* ``null``, ``true``, ``false``, strings;
* integers of magnitude at most 2^53-1;
* numbers that are finite and not integral (binary64);
* arrays of values: lists;
* objects none of whose member names starts with ``$``, of values: dictionaries from strings. The order of
  their members means nothing.

Everything else is a *tag*: an object with exactly one member, whose name starts with ``$`` and is one of
these.

``{"$float": text}``
    A float that is integral, not finite, or negative zero. ``text`` is ``nan``, ``inf``, ``-inf``, or the
    shortest decimal that reads back as the number. It has the digits d1...dn of ECMAScript's
    Number::toString and the decimal exponent e of the first: below e = 16 they are written out and followed
    by ``.0`` (``1.0``, ``-0.0``, ``1200.0``); from e = 16 on as ``d1[.d2...dn]e+e`` (``1e+16``,
    ``-1.5e+300``). Sign and payload of a NaN are not kept.
``{"$int": text}``
    An integer of magnitude above 2^53-1, in decimal: ``-?[1-9][0-9]*`` with at most 4096 digits.
``{"$bytes": text}``
    Bytes in base64 (RFC 4648 section 4) with padding, without line breaks, unused bits zero.
``{"$complex": [re, im]}``
    A complex number of two floats, each a non-integral number or a ``$float``.
``{"$tuple": [value, ...]}``
    An immutable list.
``{"$set": [key, ...]}``, ``{"$frozenset": [key, ...]}``
    A set and an immutable set. The elements are in ascending order of the UTF-8 bytes of their texts under
    RFC 8785 (JSON Canonicalization Scheme).
``{"$dict": [[key, value], ...]}``
    A dictionary, in order, at least one key of which is not a string or is a string that starts with ``$``.
``{"$array": {"dtype": name, "shape": [n, ...], "data": base64}}``
    An n-dimensional array: a data type of section 11.2, at most 32 extents, and the elements in row-major
    order, little-endian, unused bits zero. The product of the extents, 0 counted as 1, and of the bytes of
    an element is at most 2^53-1. Byte order and memory order of the original are not kept.
``{"$tensor": {...}}``
    The same for a tensor of the framework that wrote it. Device and autograd state are not kept.
``{"$object": {"type": name, "value": value}}``
    An object of a named type with plain content. ``name`` is of identifiers ``[A-Za-z_][A-Za-z0-9_]*``
    joined by ``.``, at most 200 characters. A reader that does not know the type keeps name and value as
    they are; it never imports or runs what a name may refer to.

A *key* (an element of a set, the key of a ``$dict``) is ``null``, ``true``, ``false``, a string, a number,
a ``$float``, ``$int``, ``$bytes`` or ``$complex``, a ``$tuple`` of keys, a ``$frozenset``, or an
``$object`` whose value is a key. No two keys of one set or ``$dict`` are equal, where numbers compare by
value whatever their tag or type (``true`` is 1, ``false`` is 0), tuples and sets by their elements, and all
else by text; no two have the same text either.

A value nests JSON arrays and objects at most 56 deep. Objects that are referenced twice are written twice.

These types are defined; their content must be as stated, by readers that know them.

=============================== ====================================================================
``collections.OrderedDict``     ``[[key, value], ...]``, keys distinct
``datetime.datetime``           ``YYYY-MM-DDTHH:MM:SS``, ``.ffffff`` unless zero, then nothing or an
                                offset ``+HH:MM`` or ``-HH:MM``, never ``-00:00``
``datetime.date``               ``YYYY-MM-DD``
``datetime.time``               as the part of a datetime after ``T``
``datetime.timedelta``          ``{"$tuple": [days, seconds, microseconds]}``, 0 <= seconds < 86400,
                                0 <= microseconds < 10^6
``numpy.scalar``                ``{"$tuple": [dtype, {"$bytes": ...}]}``: one element, as in ``$array``
``pathlib.PosixPath``,          a string, the path
``pathlib.PurePosixPath``,
``pathlib.PureWindowsPath``,
``pathlib.WindowsPath``
``ucp.PerRank``                 as section 15.2 says
=============================== ====================================================================

The encoding is canonical: an encodable object has one encoding up to the order of the members of objects,
and readers refuse any other.
"""

from __future__ import annotations

from ucpformat.model.values.content import MAX_DEPTH, MAX_DIGITS, NamedValue, TensorValue
from ucpformat.model.values.decoder import Restore, decode
from ucpformat.model.values.encoder import Extend, encode
from ucpformat.model.values.per_rank import ON_RESIZE, NewSeed, OnResize, PerRankValues, new_seed

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "ON_RESIZE",
    "Extend",
    "NamedValue",
    "NewSeed",
    "OnResize",
    "PerRankValues",
    "Restore",
    "TensorValue",
    "decode",
    "encode",
    "new_seed",
]
