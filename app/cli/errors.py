"""How a command fails: one line what, one line why, one line what to try, and a stable exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What the shell sees; documented in docs/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_ALLOWED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    NEEDS_CONFIRMATION = 6
    UNREACHABLE = 7


class CommandFailed(Exception):
    """A command that can't do what it was asked.

    code: stable, for programs.   what, why, remedy: a line each, for people; the last two may be empty.
    facts: more of the answer, shown with `--json`; never a secret.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        exit_code: ExitCode = ExitCode.FAILED,
        why: str = "",
        remedy: str = "",
        request_id: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.exit_code = exit_code
        self.why = why
        self.remedy = remedy
        self.request_id = request_id
        self.facts = dict(facts or {})

    def as_object(self) -> dict[str, Any]:
        """The error in the shape of the control API's errors."""
        known = {"code": self.code, "message": self.what, "why": self.why, "remedy": self.remedy}
        return {
            "error": {**self.facts, **known, "request_id": self.request_id, "exit_code": int(self.exit_code)}
        }


def usage_error(what: str, *, remedy: str = "") -> CommandFailed:
    """The failure of a command line that names too little or too much."""
    return CommandFailed("usage", what, exit_code=ExitCode.USAGE, remedy=remedy)


def report(error: CommandFailed, *, as_json: bool) -> int:
    """Print an error to standard error and return its exit code."""
    if as_json:
        sys.stderr.write(json.dumps(error.as_object(), ensure_ascii=False) + "\n")
        return int(error.exit_code)
    lines = [f"error: {error.what}"]
    if error.why:
        lines.append(f"  why: {error.why}")
    if error.remedy:
        lines.append(f"  try: {error.remedy}")
    where = f"  request {error.request_id}" if error.request_id else ""
    lines.append(f"  code: {error.code}{where}")
    sys.stderr.write("\n".join(lines) + "\n")
    return int(error.exit_code)
