"""Counting by a model's own file: lazily, in a thread, bounded, and never an exception but `NotCounted`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.clock import ManualClock
from app.gateway.engine_tokenizer import NotCounted
from app.gateway.tokenizer_files import MAX_LOADED, MAX_TEXT_BYTES, MAX_WAITING, RETRY_S, TokenizerFiles
from tests.app.gateway.words import save_words


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(clock: ManualClock) -> Iterator[TokenizerFiles]:
    opened = TokenizerFiles(clock=clock)
    yield opened
    opened.close()


async def test_each_text_is_counted_and_the_file_read_once(files: TokenizerFiles, tmp_path: Path) -> None:
    path = save_words(tmp_path)
    assert await files.count(path, ["one two three", "", "one"]) == [3, 0, 1]
    assert await files.count(path, ["two"]) == [1]
    assert files.loads == {"loaded": 1}


async def test_nothing_is_read_before_it_is_needed(files: TokenizerFiles) -> None:
    assert await files.count("/nowhere/tokenizer.json", []) == []
    assert files.loads == {}


async def test_a_truncating_or_padding_file_counts_all_the_same(
    files: TokenizerFiles, tmp_path: Path
) -> None:
    path = save_words(tmp_path, truncate=2, pad=8)
    assert await files.count(path, ["one two three", "one"]) == [3, 1]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x00\xff", b'{"version":"1.0","model":{}}'])
async def test_what_is_no_tokenizer_is_told_and_left_alone_for_a_while(
    files: TokenizerFiles, clock: ManualClock, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    for _ in range(3):
        with pytest.raises(NotCounted, match="no_tokenizer"):
            await files.count(str(path), ["one"])
    assert files.loads == {"failed": 1}
    save_words(tmp_path)
    clock.advance(RETRY_S + 1)
    assert await files.count(str(path), ["one"]) == [1]


async def test_a_file_that_changed_is_read_again(files: TokenizerFiles, tmp_path: Path) -> None:
    path = save_words(tmp_path)
    assert await files.count(path, ["one-two"]) == [3]
    before_ns = Path(path).stat().st_mtime_ns
    save_words(tmp_path, punctuation=False)
    while Path(path).stat().st_mtime_ns == before_ns:  # a coarse clock of the file system
        save_words(tmp_path, punctuation=False)
    assert await files.count(path, ["one-two"]) == [1]


async def test_few_tokenizers_stay_in_memory(files: TokenizerFiles, tmp_path: Path) -> None:
    paths = [save_words(tmp_path, name=f"{number}.json") for number in range(MAX_LOADED + 1)]
    for path in [*paths, paths[0]]:
        assert await files.count(path, ["one"]) == [1]
    assert files.loads == {"loaded": MAX_LOADED + 2}


async def test_too_long_a_text_is_not_counted(files: TokenizerFiles, tmp_path: Path) -> None:
    with pytest.raises(NotCounted, match="too_long"):
        await files.count(save_words(tmp_path), ["a" * (MAX_TEXT_BYTES + 1)])


async def test_the_loop_goes_on_while_a_thread_counts_and_a_crowd_is_turned_away(
    files: TokenizerFiles, tmp_path: Path
) -> None:
    path = save_words(tmp_path)
    crowd = [asyncio.ensure_future(files.count(path, ["one two"])) for _ in range(MAX_WAITING + 5)]
    results = await asyncio.gather(*crowd, return_exceptions=True)
    assert [one for one in results if one == [2]] == [[2]] * MAX_WAITING
    turned_away = [one for one in results if isinstance(one, NotCounted)]
    assert {str(one) for one in turned_away} == {"too_many"}
    assert len(turned_away) == 5
    assert any(thread.name.startswith("tokenizer") for thread in threading.enumerate())
