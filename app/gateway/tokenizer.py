"""Counts what an engine left uncounted: by the engine's own tokenizer, else by the model's own file.

For answers whose engine reports no usage: cut before it could, or not at all. Whatever goes wrong means
"not counted", and then the usage is unknown. The engine knows the template; a file does not, so there the
input is that of the texts alone: a lower bound, flagged `template_not_counted`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from app.gateway.answer import Answer
from app.gateway.dialect import Dialect, dialect_of
from app.gateway.engine_tokenizer import EngineTokenizer, NotCounted
from app.gateway.event_stream import EventStream
from app.gateway.model import Admission, Ask
from app.gateway.prompt import Prompt, read_prompt
from app.gateway.spoken import Said
from app.gateway.tokenizer_files import TokenizerFiles
from billing.metering.convert import Report
from scheduler.ports import EngineClient
from scheduler.registry.model import BackendSpec

MAX_AT_ONCE = 32
"""Counts that run at the same time; more wait, within their own time."""


class Uncounted(NamedTuple):
    """What was delivered and not counted.

    said: by each choice.   told: what the engine did report: the prompt, and the first choice's output.
    engine_lives: it can be asked.   echoes: how often the prompt was said too, which nobody generated.
    """

    backend: BackendSpec
    dialect: Dialect
    said: tuple[Said, ...]
    told: Report = Report()
    engine_lives: bool = True
    echoes: int = 0


class Counted(NamedTuple):
    """Tokens of the prompt and of what was delivered.   cached: of the prompt, if the engine told it."""

    input: int
    output: int
    cached: int | None = None
    flags: tuple[str, ...] = ()


def uncounted_of(
    source: EventStream | Answer, backend: BackendSpec, *, ask: Ask, engine_lives: bool
) -> Uncounted | None:
    """What a stream or a whole answer said and did not count; None if it did, or said nothing."""
    dialect = dialect_of(backend.engine)
    is_one = ask.choices * ask.prompts == 1
    if isinstance(source, EventStream):
        transcript, report = source.transcript(), source.report() or Report()
        if transcript is None or transcript.too_long:
            return None
        said = transcript.said()
    else:
        report = source.report or Report()
        if report.is_full and (is_one or dialect.totals):
            return None
        said = source.said()
    if not said:
        return None
    holds_prompt = ask.prompts == 1 or dialect.totals
    told = Report(
        prompt=report.prompt if holds_prompt else None,
        completion=report.completion if is_one or not dialect.totals else None,
        cached=report.cached if holds_prompt else None,
    )
    return Uncounted(backend, dialect, said, told, engine_lives, ask.choices if ask.echo else 0)


class TokenCounter:
    """Counts at engines and by files.   timeout_s: for all of one way of a count together.

    counts: how they came out, by way (`engine`, `file`) and result (`counted`, or why not).
    """

    def __init__(
        self, client: EngineClient, *, files: TokenizerFiles | None = None, timeout_s: float = 2.0
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._files = files
        self._client = client
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    @property
    def loads(self) -> Mapping[str, int]:
        """How many tokenizer files were read (`loaded`), and how often one could not be (`failed`)."""
        return self._files.loads if self._files is not None else {}

    def close(self) -> None:
        """Count no more."""
        if self._files is not None:
            self._files.close()

    def can_count(self, admission: Admission, dialect: Dialect, *, engine_lives: bool) -> bool:
        """True if there is a way to count for this request."""
        by_file = self._files is not None and admission.model.tokenizer is not None
        return by_file or (engine_lives and dialect.tokenize is not None)

    async def count(self, admission: Admission, uncounted: Uncounted) -> Counted | None:
        """The tokens of the request and of what was delivered, or None if nobody can tell."""
        try:
            prompt = read_prompt(admission.ask)
        except (ValueError, KeyError, RecursionError):
            self.counts["body", "unreadable"] += 1
            return None
        if uncounted.engine_lives and uncounted.dialect.tokenize is not None:
            counted = await self._try("engine", prompt, admission=admission, uncounted=uncounted)
            if counted is not None:
                return counted
        if self._files is not None and admission.model.tokenizer is not None:
            return await self._try("file", prompt, admission=admission, uncounted=uncounted)
        return None

    async def _try(
        self, way: str, prompt: Prompt, *, admission: Admission, uncounted: Uncounted
    ) -> Counted | None:
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                if way == "engine":
                    counted = await self._by_engine(prompt, uncounted)
                else:
                    counted = await self._by_file(prompt, uncounted, path=admission.model.tokenizer or "")
        except TimeoutError:
            self.counts[way, "timed_out"] += 1
        except NotCounted as why:
            self.counts[way, str(why)] += 1
        else:
            self.counts[way, "counted"] += 1
            return counted
        return None

    async def _by_engine(self, prompt: Prompt, uncounted: Uncounted) -> Counted:
        assert uncounted.dialect.tokenize is not None
        engine = EngineTokenizer(
            self._client, uncounted.backend, way=uncounted.dialect.tokenize, timeout_s=self._timeout_s
        )
        spoken = [await engine.count_text(said.text) if said.text else 0 for said in uncounted.said]
        told = uncounted.told.prompt
        given, flags = (told, ()) if told is not None else await engine.count_prompt(prompt)
        return _counted(uncounted, given, spoken=spoken, flags=flags)

    async def _by_file(self, prompt: Prompt, uncounted: Uncounted, *, path: str) -> Counted:
        assert self._files is not None
        told = uncounted.told.prompt
        texts = [said.text for said in uncounted.said]
        counts = await self._files.count(path, [*texts, *(prompt.texts if told is None else ())])
        spoken, given = counts[: len(texts)], counts[len(texts) :]
        if told is not None:
            return _counted(uncounted, told, spoken=spoken, flags=())
        flags = ("template_not_counted",) if prompt.messages is not None else ()
        return _counted(uncounted, sum(given) + prompt.tokens, spoken=spoken, flags=flags)


def _counted(uncounted: Uncounted, given: int, *, spoken: list[int], flags: tuple[str, ...]) -> Counted:
    """The sum over all choices; of each the most that text and `logprobs` tell, or what the engine did."""
    outputs = [max(count, said.tokens) for count, said in zip(spoken, uncounted.said, strict=True)]
    told = uncounted.told
    if told.completion is not None:
        outputs[:1] = [told.completion]
    generated = sum(outputs)
    if told.completion is None:
        generated = max(0, generated - given * uncounted.echoes)
    return Counted(given, generated, told.cached if told.prompt is not None else None, flags)
