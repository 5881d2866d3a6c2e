"""How much of a chat's body is JSON that the engine's template writes anew, and so may write longer. Pure.

A prompt's text reaches the tokenizer as it is: never more tokens than bytes. Tools, their calls and their
results are printed by the template: with blanks after commas and colons, with exponents written out
(`1e15,` becomes `1000000000000000.0, `), perhaps escaped to ASCII, perhaps indented.
"""

from __future__ import annotations

import msgspec

from app.gateway.structure import depth

MAX_DEPTH = 16
"""Deeper, an indenting template writes more blanks than any factor covers."""
MAX_BYTES = 64 * 1024
"""Longer, the model's context is the tighter bound, and looking would take the others' time."""
_RESULT_BYTES = 16
"""What a template may print around each call or result of a tool, as bytes of JSON."""

_NULL = msgspec.Raw(b"null")


class Message(msgspec.Struct):
    """A message as far as its weight depends on it."""

    content: msgspec.Raw = _NULL
    tool_calls: msgspec.Raw = _NULL
    function_call: msgspec.Raw = _NULL
    tool_call_id: msgspec.Raw = _NULL

    @property
    def renders(self) -> bool:
        """True if it is a call of a tool or a tool's result."""
        return not (self.tool_calls is self.function_call is self.tool_call_id is _NULL)

    def rendered(self) -> list[msgspec.Raw]:
        """Its members that a template prints as JSON."""
        calls = [value for value in (self.tool_calls, self.function_call) if value is not _NULL]
        return calls if self.tool_call_id is _NULL else [*calls, self.content, self.tool_call_id]


def rendered_bytes(values: list[msgspec.Raw], *, results: int) -> int | None:
    """The bytes of these values, and of what surrounds so many results; None: no factor bounds them."""
    total = sum(len(memoryview(value)) for value in values) + results * _RESULT_BYTES
    if total > MAX_BYTES or any(depth(bytes(value)) > MAX_DEPTH for value in values):
        return None
    return total
