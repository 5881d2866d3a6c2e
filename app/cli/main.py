"""The `steelyard` command: gathers the nouns and turns failures into exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from app.cli.commands import (
    alerts,
    audit,
    backends,
    corrections,
    deployments,
    keys,
    limits,
    models,
    parked,
    plans,
    prices,
    projects,
    requests,
    stack,
    tasks,
    tenants,
    usage,
    usage_events,
    verify,
    verify_events,
    wallets,
)
from app.cli.errors import CommandFailed, ExitCode, report

app = stack.verbs
nouns = (
    tenants,
    projects,
    keys,
    models,
    deployments,
    backends,
    prices,
    plans,
    limits,
    wallets,
    tasks,
    usage,
    requests,
    corrections,
    alerts,
    audit,
    parked,
    verify,
)
further = (usage_events, verify_events)
"""Modules that add verbs to a noun of another."""
for module in nouns:
    app.add_typer(module.verbs)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are printed to standard error."""
    as_json = "--json" in arguments
    try:
        code = app(args=list(arguments), prog_name="steelyard", standalone_mode=False)
    except CommandFailed as error:
        return report(error, as_json=as_json)
    except TyperException as error:
        return _report_usage(error, as_json=as_json)
    except typer.Abort:
        return report(CommandFailed("aborted", "stopped before anything was done"), as_json=as_json)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stdout = None
        return int(ExitCode.OK)
    return code if isinstance(code, int) else int(ExitCode.OK)


def main() -> None:
    """Entry point of the `steelyard` program."""
    sys.exit(run(sys.argv[1:]))


def _report_usage(error: TyperException, *, as_json: bool) -> int:
    what = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "steelyard"
    if what.startswith("Usage:"):  # a noun without a verb: its help is the answer
        sys.stderr.write(what + "\n")
        return int(ExitCode.USAGE)
    remedy = f"{path} --help"
    return report(CommandFailed("usage", what, exit_code=ExitCode.USAGE, remedy=remedy), as_json=as_json)


if __name__ == "__main__":
    main()
