"""A deliberate fault, put into a module's source as it is imported; no file is ever changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

Stir = Literal[
    "anything", "power", "settler", "statement", "gateway", "price", "choices", "replay", "nothing"
]  # fmt: skip
"""A cut of power; the death of a settler, of one at a statement, of a gateway; another price; n > 1; a
journal that is read again."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Patch:
    """Replaces the only occurrence of `old` in the source of a module."""

    module: str
    old: str
    new: str


class StalePatch(Exception):
    """The text that a patch replaces isn't there, or isn't unique: the mutant has to follow the code."""


@dataclass(frozen=True)
class Mutant:
    """The product with one fault in it.

    does: what is wrong with it, in words.   stirred_by: what has to happen in a simulated run, so that it
    can show.   dies_at: kinds of moments of a process at whose points it must show, instead of by seeds.
    tests: those that have to notice where no simulated run does.
    """

    name: str
    does: str
    patches: tuple[Patch, ...]
    stirred_by: Stir = "anything"
    dies_at: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def modules(self) -> frozenset[str]:
        """The modules that are faulty in it."""
        return frozenset(patch.module for patch in self.patches)

    def source_of(self, module: str) -> str:
        """The faulty source. Raises StalePatch where a patch doesn't fit exactly once."""
        source = path_of(module).read_text(encoding="utf-8")
        for patch in self.patches:
            if patch.module != module:
                continue
            if (times := source.count(patch.old)) != 1:
                raise StalePatch(f"{self.name}: {times} times in {module}: {patch.old}")
            source = source.replace(patch.old, patch.new)
        return source

    def infect(self) -> None:
        """Let this process import the faulty modules; before it has imported any of them."""
        early = self.modules & sys.modules.keys()
        assert not early, f"imported before the fault was in them: {early}"
        sys.meta_path.insert(0, _Finder(self))


def path_of(module: str) -> Path:
    """Where the source of a module of ours lies."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._mutant.modules:
            return None
        where = str(path_of(fullname))
        return spec_from_file_location(fullname, where, loader=_Loader(fullname, where, self._mutant))


class _Loader(SourceFileLoader):
    """Compiles the faulty source; reads and writes no bytecode, which is that of the sound one."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.source_of(fullname), self.path, "exec", dont_inherit=True)
