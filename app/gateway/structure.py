"""Looks at the structure of JSON without decoding it, so that no body costs more memory than its bytes. Pure.

A decoder makes an object of each `{}`: of three bytes, some sixty. So the number of values is bounded first.
"""

from __future__ import annotations

import re
from itertools import accumulate, islice

MAX_VALUES = 100_000
"""Most objects and lists, and most texts, of one body. A long prompt has few of them, however long."""
_FEW_BYTES = 256 * 1024
"""A body of so few bytes can't do harm, whatever it is made of."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ELEMENT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}]', re.DOTALL)
_NUMBER = re.compile(rb"\[\s*-?\d")
_BRACKETS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = tuple(1 if byte in b"[{" else -1 for byte in range(256))


def is_too_fine(body: bytes) -> bool:
    """True if it consists of more values than `MAX_VALUES`. O(len(body)), and nothing is built of them."""
    if len(body) <= _FEW_BYTES:
        return False
    quotes = body.count(b'"') - body.count(b'\\"')
    return quotes > 4 * MAX_VALUES or (_exceeds(body) and _exceeds(_STRING.sub(b"", body)))


def depth(raw: bytes) -> int:
    """How deep the lists and objects of a valid JSON value are nested."""
    brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def count_texts(raw: bytes, *, most: int) -> int:
    """How many texts and lists a valid JSON list holds; 1 if it begins with a number: one list of tokens.

    Counts no further than to `most` + 1, which it returns for what is too fine to be looked at, too.
    """
    if _NUMBER.match(raw):
        return 1
    level = count = 0
    for element in islice(_ELEMENT.finditer(raw), MAX_VALUES):
        step = _BRACKETS.get(element[0], 0)
        count += level == 1 and step >= 0
        level += step
        if level == 0:
            return count
        if count > most:
            break
    return most + 1


def _exceeds(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") > MAX_VALUES
