"""Counts tokens by a model's own `tokenizer.json`, for engines that report usage only at the end.

A file is read when it is first needed, in a thread, and so is every text counted: never on the event loop.
Both are bounded: the file, the text, the time, how many may wait, how many tokenizers stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from app.core.clock import Clock
from app.gateway.engine_tokenizer import NotCounted

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 128 * 1024 * 1024
MAX_TEXT_BYTES = 1024 * 1024
"""Most text of one count: some 250,000 tokens, for which a thread needs about a second."""
MAX_WAITING = 64
MAX_LOADED = 4
"""Tokenizers kept in memory; each is some ten megabytes."""
RETRY_S = 60.0
"""How long a file that could not be read is left alone."""


class TokenizerFiles:
    """The tokenizers of a process, by path.   loads: how many were read, and how many could not be."""

    def __init__(self, *, clock: Clock) -> None:
        self.loads: Counter[str] = Counter()
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._loaded: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._failed_until: dict[str, float] = {}

    async def count(self, path: str, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, without any that a template adds. Raises NotCounted."""
        if not texts:
            return []
        if sum(map(len, texts)) > MAX_TEXT_BYTES:
            raise NotCounted("too_long")
        if self._failed_until.get(path, 0.0) > self._clock.monotonic():
            raise NotCounted("no_tokenizer")
        if self._waiting >= MAX_WAITING:
            raise NotCounted("too_many")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._count, path, list(texts)
            )
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the thread end; what it still counts is for nobody."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # In the thread, one at a time.

    def _count(self, path: str, texts: list[str]) -> list[int]:
        tokenizer = self._tokenizer(path)
        return [len(encoding) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _tokenizer(self, path: str) -> Any:
        """The tokenizer of a file, read again if that has changed."""
        try:
            told = Path(path).stat()
            changed_ns, loaded = self._loaded.get(path, (0, None))
            if loaded is None or changed_ns != told.st_mtime_ns:
                loaded = _load(path, size=told.st_size)
                self._loaded[path] = (told.st_mtime_ns, loaded)
                self.loads["loaded"] += 1
        except (OSError, NotCounted) as error:
            self._failed_until[path] = self._clock.monotonic() + RETRY_S
            self.loads["failed"] += 1
            log.warning("tokenizer_unreadable", extra={"path": path, "reason": str(error)})
            raise NotCounted("no_tokenizer") from error
        self._loaded.move_to_end(path)
        if len(self._loaded) > MAX_LOADED:
            self._loaded.popitem(last=False)
        return loaded


def _load(path: str, *, size: int) -> Any:
    """Read a `tokenizer.json`. Raises NotCounted if it is too large, or isn't one."""
    if size > MAX_FILE_BYTES:
        raise NotCounted(f"the file is larger than {MAX_FILE_BYTES} bytes")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else it starts a thread for each core
    from tokenizers import Tokenizer  # here: most gateways never need it, and it is large

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # it raises nothing more special
        raise NotCounted(f"the file is no tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
