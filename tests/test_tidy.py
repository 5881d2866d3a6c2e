"""The hard limits of the house style, for every file: the worst one counts, not the average.

A waiver is a row in `WAIVERS` with its reason; one that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ("app", "billing", "scheduler", "migrations", "bench")
MODULE_LINES, TEST_LINES, FUNCTION_LINES, NESTING, POSITIONAL = 400, 500, 60, 3, 2

FORBIDDEN_NAMES = frozenset({"utils", "helpers", "common", "manager", "misc"})
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TRANSPARENT = frozenset(
    {"staticmethod", "classmethod", "contextmanager", "asynccontextmanager", "cache", "override"}
)
TEXTS = (
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".html",
    ".css",
    ".sql",
    ".sh",
    ".mako",
    ".conf",
    ".svg",
    ".json",
)
UNFINISHED = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|X" + "XX)\\b")
MACHINE = re.compile(
    "|".join(["/wo" + "rk/(main|shared)", r"/root/\.", "/tmp/bash" + "_jobs", "/tmp/br" + "ief"])
)
REGISTRY = re.compile("pypi" + r"\.org|python" + r"hosted\.org|registry\.npm" + "js")

WAIVERS: dict[tuple[str, str], str] = {
    ("many_positional_parameters", "app/gateway/protocol.py:__init__"): (
        "uvicorn calls it so: it is the signature of the protocol that it extends"
    ),
    ("many_positional_parameters", "billing/metering/policy.py:billed"): (
        "contract between rooms: three types that can't be swapped, in the order of the published table"
    ),
    ("many_positional_parameters", "billing/quota/authority.py:post"): (
        "contract between rooms: the connection comes first everywhere, then whose uses and which"
    ),
}
"""(rule, what the rule names) → why it may stay."""

Offence = tuple[str, str]
Rule = Callable[[], Iterator[Offence]]


@cache
def _files() -> tuple[Path, ...]:
    """Every text file of the repository, generated and installed ones aside."""
    tops = [*HOUSE, "tests", "docs", "deploy", ".ci"]
    below = (path for top in tops for path in (ROOT / top).rglob("*") if path.is_file())
    beside = (path for path in ROOT.iterdir() if path.is_file() and path.suffix in {*TEXTS, ""})
    return tuple(sorted(path for path in {*below, *beside} if _is_ours(path)))


def _is_ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    outside = {"__pycache__", "node_modules", "vendor", "results"} & set(parts)
    return (
        not outside
        and ".git" not in parts
        and (path.suffix in TEXTS or path.parent.name == ".ci" or len(parts) == 1)
    )


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _modules(*tops: str) -> Iterator[tuple[str, Path]]:
    return (
        (_name(path), path) for path in _files() if path.suffix == ".py" and _name(path).split("/")[0] in tops
    )


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, FUNCTIONS))


def _line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def long_modules() -> Iterator[Offence]:
    for name, path in _modules(*HOUSE, "tests"):
        most = TEST_LINES if name.startswith("tests/") else MODULE_LINES
        if (lines := _line_count(path)) > most:
            yield name, f"{lines} lines, at most {most}"


def long_functions() -> Iterator[Offence]:
    for name, path in _modules(*HOUSE, "tests"):
        for function in _functions(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{name}:{function.name}", f"{lines} lines, at most {FUNCTION_LINES}"


def deep_functions() -> Iterator[Offence]:
    for name, path in _modules(*HOUSE, "tests"):
        for function in _functions(path):
            if (depth := _depth(function.body)) > NESTING:
                yield f"{name}:{function.name}", f"nested {depth} deep, at most {NESTING}"


def _depth(statements: list[ast.stmt], *, chained: bool = False) -> int:
    """How deep blocks lie within one another; `elif` continues its `if`, an inner function starts anew."""
    deepest = 0
    for statement in statements:
        if isinstance(statement, BLOCKS):
            inner = max((_depth(body, chained=alone) for body, alone in _bodies(statement)), default=0)
            deepest = max(deepest, inner + (not (chained and isinstance(statement, ast.If))))
    return deepest


def _bodies(block: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(block, field, [])
        is_elif = (
            isinstance(block, ast.If) and field == "orelse" and len(body) == 1 and isinstance(body[0], ast.If)
        )
        yield body, is_elif
    for part in (*getattr(block, "handlers", ()), *getattr(block, "cases", ())):
        yield part.body, False


def many_positional_parameters() -> Iterator[Offence]:
    for name, path in _modules(*HOUSE):
        for function in _functions(path):
            taken = [*function.args.posonlyargs, *function.args.args]
            amount = len(taken) - (bool(taken) and taken[0].arg in ("self", "cls"))
            if amount > POSITIONAL and _is_called_by_us(function):
                yield f"{name}:{function.name}", f"{amount} positional parameters, at most {POSITIONAL}"


def _is_called_by_us(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """False for functions that a framework or the language calls: routes, commands, `__exit__`."""
    if function.name.startswith("__") and function.name != "__init__":
        return False
    return all(
        ast.unparse(decorator).rpartition(".")[2] in TRANSPARENT for decorator in function.decorator_list
    )


def empty_names() -> Iterator[Offence]:
    for name, path in _modules(*HOUSE, "tests"):
        if FORBIDDEN_NAMES & {path.stem.removeprefix("test_"), path.parent.name}:
            yield name, "a name that says nothing: split by concept"


def unfinished_work() -> Iterator[Offence]:
    yield from _lines_with(UNFINISHED, "unfinished work")


def machine_paths() -> Iterator[Offence]:
    yield from _lines_with(MACHINE, "a path of one machine")


def registry_addresses() -> Iterator[Offence]:
    yield from _lines_with(REGISTRY, "the address of a package registry")


def _lines_with(pattern: re.Pattern[str], what: str) -> Iterator[Offence]:
    for path in _files():
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        ):
            if pattern.search(line):
                yield f"{_name(path)}:{number}", what


def addresses_in_locks() -> Iterator[Offence]:
    for path in ROOT.glob("*.lock"):
        if "://" in path.read_text(encoding="utf-8"):
            yield _name(path), "an address in a lock file"


def floats_near_money() -> Iterator[Offence]:
    for name, path in _modules("billing"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
                yield f"{name}:{node.lineno}", "a float near money"


def sleeping_tests() -> Iterator[Offence]:
    for name, path in _modules("tests"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
                yield f"{name}:{node.lineno}", "a sleep: await a condition or move a clock"


RULES: tuple[Rule, ...] = (
    long_modules,
    long_functions,
    deep_functions,
    many_positional_parameters,
    empty_names,
    unfinished_work,
    machine_paths,
    registry_addresses,
    addresses_in_locks,
    floats_near_money,
    sleeping_tests,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_is_free_of(rule: Rule) -> None:
    offences = [f"{what}: {why}" for what, why in rule() if (rule.__name__, what) not in WAIVERS]
    assert not offences, f"{rule.__name__}:\n" + "\n".join(offences)


def test_every_waiver_is_still_needed() -> None:
    found = {(rule.__name__, what) for rule in RULES for what, _ in rule()}
    assert not WAIVERS.keys() - found


def test_depth_counts_blocks_but_not_elif() -> None:
    source = "if a:\n  pass\nelif b:\n  pass\nelif c:\n  for x in y:\n    with z:\n      pass\n"
    assert _depth(ast.parse(source).body) == 3
