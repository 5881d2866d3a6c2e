"""Every setting, error code, metric and command is documented, and the documents say what is so."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from app.cli.main import app as command_line
from app.core import errors
from app.core.errors import RejectReason, SteelyardError
from app.core.settings import Settings
from billing.journal.metrics import SettlerMetrics
from billing.metering.model import Meter, Outcome, UsageSource
from billing.metering.policy import BILLED

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
_METRIC = re.compile(r"steelyard_[a-z0-9_]*[a-z0-9]")
_FLAG = re.compile(r'flags(?:\.append\(|: list\[str\] = \[| \+= \(| = \(|=\([^"\n]*)"(\w+)"')
_OTHERS = "app owner changes session form template"
NOT_METRICS = frozenset(f"steelyard_{name}" for name in _OTHERS.split())


def _rows(document: str) -> Iterator[list[str]]:
    """The cells of every table row of a document whose first cell is code."""
    for line in (DOCS / document).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].startswith("`"):
            yield cells


def _sources() -> Iterator[Path]:
    return (
        path for top in ("app", "billing", "scheduler", "migrations") for path in (ROOT / top).rglob("*.py")
    )


# Settings


def test_every_setting_is_documented_with_its_default_and_meaning() -> None:
    documented = {cells[0].strip("`"): cells[1:] for cells in _rows("settings.md")}
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        shown = "–" if default is None else f"`{default}`"
        assert documented[f"STEELYARD_{name.upper()}"] == [shown, field.description]


def test_every_documented_setting_is_read_somewhere() -> None:
    known = {f"STEELYARD_{name.upper()}" for name in Settings.model_fields}
    read = "".join(path.read_text(encoding="utf-8") for path in _sources())
    assert not [
        c[0] for c in _rows("settings.md") if c[0].strip("`") not in known and c[0].strip("`") not in read
    ]


# Flags of a request's usage


def test_every_flag_of_a_usage_is_explained() -> None:
    sources = (path.read_text(encoding="utf-8") for path in _sources())
    flags = {flag for source in sources for flag in _FLAG.findall(source)}
    assert {"cached_unknown", "tail_unknown", "usage_malformed", "template_not_counted"} <= flags
    explained = (DOCS / "metering-policy.md").read_text(encoding="utf-8")
    assert not [flag for flag in sorted(flags) if f"`{flag}`" not in explained]


# Errors


def test_every_error_code_is_documented_once() -> None:
    kinds = (
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SteelyardError)
    )
    codes = {reason.value for reason in RejectReason} | {kind.code for kind in kinds}
    assert sorted(cells[0].strip("`") for cells in _rows("errors.md")) == sorted(codes)


def test_every_refusal_has_a_status_that_is_documented() -> None:
    documented = {cells[0].strip("`"): set(re.findall(r"\d{3}", cells[1])) for cells in _rows("errors.md")}
    raised = [(reason, status) for path in _sources() for reason, status in _refusals(path)]
    assert raised
    assert not [(r, s) for r, s in raised if str(s) not in documented[RejectReason[r].value]]


def _refusals(path: Path) -> Iterator[tuple[str, int]]:
    """The reason and status of each `Rejected(RejectReason.X, …, status=N)` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("Rejected")):
            continue
        reason = ast.unparse(node.args[0])
        status = next((k.value for k in node.keywords if k.arg == "status"), None)
        if (
            reason.startswith("RejectReason.")
            and isinstance(status, ast.Constant)
            and isinstance(status.value, int)
        ):
            yield reason.rpartition(".")[2], status.value


# Metering policy


def test_the_published_policy_is_the_one_in_force() -> None:
    documented = {cells[0].strip("`"): cells[1:] for cells in _rows("metering-policy.md") if len(cells) == 5}
    whole, nothing = frozenset(Meter), frozenset[Meter]()
    in_force = {
        outcome.value: [{whole: "all", nothing: "none"}[by_source[source]] for source in UsageSource]
        for outcome, by_source in BILLED.items()
    }
    assert documented == in_force


def test_every_outcome_and_source_is_explained() -> None:
    explained = {cells[0].strip("`") for cells in _rows("metering-policy.md") if len(cells) == 2}
    assert explained == {*Outcome, *UsageSource}


# Metrics


def test_every_metric_is_documented_and_every_documented_one_exported() -> None:
    documented = {cells[0].strip("`").removesuffix("_total") for cells in _rows("metrics.md")}
    settler = {family.name for family in SettlerMetrics().registry.collect()}
    named = {name.removesuffix("_total") for path in _sources() for name in _metric_names(path)}
    assert documented == settler | named - NOT_METRICS


def _metric_names(path: Path) -> Iterator[str]:
    """The strings of a file that are a metric's name and nothing else."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _METRIC.fullmatch(node.value):
            yield node.value


# Commands


@cache
def _root() -> TyperGroup:
    root = get_command(command_line)
    assert isinstance(root, TyperGroup)
    return root


@cache
def _commands() -> dict[str, TyperCommand]:
    """Every command by its words: `steelyard keys create`."""
    return dict(_below(_root(), "steelyard"))


def _below(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _below(command, f"{path} {name}")
        else:
            assert isinstance(command, TyperCommand)
            yield f"{path} {name}", command


def test_every_command_and_option_is_documented() -> None:
    documented = {cells[0].strip("`"): cells[1:] for cells in _rows("cli.md")}
    commands = _commands()
    assert documented.keys() == commands.keys()
    for path, command in commands.items():
        text = " ".join(documented[path])
        for parameter in command.params:
            name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name
            assert name == "--help" or f"`{name}`" in text, f"{path}: {name} is not documented"


@pytest.mark.parametrize("path", sorted(_commands()))
def test_help_begins_with_three_examples_that_can_be_parsed(path: str) -> None:
    command = _commands()[path]
    lines = (command.help or "").splitlines()
    examples = [line.strip() for line in lines[2 : lines.index("")]]
    assert lines[1] == "Examples:"
    assert len(examples) >= 3
    for example in examples:
        assert example.startswith(path)
        _parse(example)


def _parse(example: str) -> None:
    """Parse one example as the command line would, and run nothing."""
    words = shlex.split(example.partition(" > ")[0])
    command: Any = _root()
    context = command.make_context(words[0], words[1:])
    while isinstance(command, TyperGroup):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


# Links


def _documents() -> list[str]:
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))]


@pytest.mark.parametrize("document", _documents())
def test_every_link_between_documents_leads_somewhere(document: str) -> None:
    path = ROOT / document
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (path.parent / target).exists()]
