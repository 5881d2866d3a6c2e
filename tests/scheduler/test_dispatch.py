from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import (
    ConnectFailed,
    EngineError,
    FirstTokenTimeout,
    Rejected,
    RejectReason,
    StreamBroken,
)
from scheduler.dispatch import MAX_HELD_BYTES
from scheduler.model import AttemptOutcome
from scheduler.registry.model import Health, ProbeResult, ProbeStatus
from tests.scheduler.fakes import DEADLINES, FakeExchange, Fleet, Heard, demand, spec

Play = Callable[[FakeExchange], None]


def fails_with(error: EngineError) -> Play:
    return lambda exchange: exchange.sink.error(error)


def head_then(error: EngineError) -> Play:
    def play(exchange: FakeExchange) -> None:
        exchange.sink.head(200, [])
        exchange.sink.error(error)

    return play


def answers(status: int, *pieces: bytes) -> Play:
    return lambda exchange: exchange.answer(status, *pieces)


RETRIED: dict[str, tuple[Play, AttemptOutcome]] = {
    "connect failed": (fails_with(ConnectFailed("x")), AttemptOutcome.UNREACHABLE),
    "no first token": (fails_with(FirstTokenTimeout("x")), AttemptOutcome.FIRST_TOKEN_TIMEOUT),
    "broken before its head": (fails_with(StreamBroken("x")), AttemptOutcome.BROKEN),
    "broken after its head": (head_then(StreamBroken("x")), AttemptOutcome.BROKEN),
    "500": (answers(500, b"no"), AttemptOutcome.FAULTED),
    "502": (answers(502, b"no"), AttemptOutcome.FAULTED),
    "504 without body": (answers(504), AttemptOutcome.FAULTED),
    "503": (answers(503, b"busy"), AttemptOutcome.OVERLOADED),
    "429": (answers(429, b"slow down"), AttemptOutcome.OVERLOADED),
}
ERRORS = [name for name in RETRIED if not name[0].isdigit()]
STATUSES = [name for name in RETRIED if name[0].isdigit()]


def health(fleet: Fleet, name: str) -> Health:
    return next(b.health for b in fleet.registry.snapshot() if b.backend_id == name)


def test_an_answer_passes_through_with_the_backend_that_gave_it() -> None:
    fleet = Fleet(spec("a"))
    dispatch, heard = fleet.dispatch()
    assert fleet.client.last.request.body == b"served-by-a"
    fleet.client.last.answer(200, b"one", b"two")
    assert (heard.status, heard.backend, heard.pieces, heard.ended) == (200, "a", [b"one", b"two"], 1)
    (attempt,) = dispatch.attempts
    assert (attempt.outcome, attempt.status, attempt.error_code) == (AttemptOutcome.DELIVERED, 200, None)
    assert attempt.predicted_wait_ms == attempt.scores["a"] > 0  # type: ignore[index]
    assert fleet.in_flight() == {"a": 0}


def test_the_head_is_held_back_until_a_body_byte_commits_it() -> None:
    fleet = Fleet(spec("a"))
    _, heard = fleet.dispatch()
    fleet.client.last.sink.head(200, [])
    assert heard.status is None
    fleet.client.last.sink.piece(b"x")
    assert (heard.status, heard.pieces) == (200, [b"x"])


@pytest.mark.parametrize("name", RETRIED)
def test_a_failure_before_the_first_byte_is_retried_elsewhere(name: str) -> None:
    play, outcome = RETRIED[name]
    fleet = Fleet(spec("a"), spec("b"))
    dispatch, heard = fleet.dispatch()
    play(fleet.client.last)
    assert heard == Heard()
    assert [e.backend for e in fleet.client.exchanges] == ["a", "b"]
    assert fleet.in_flight() == {"a": 0, "b": 1}
    fleet.client.last.answer(200, b"good")
    assert (heard.backend, heard.pieces, heard.ended, heard.errors) == ("b", [b"good"], 1, [])
    assert [a.outcome for a in dispatch.attempts] == [outcome, AttemptOutcome.DELIVERED]
    assert fleet.dispatcher.metrics.snapshot().retries == {outcome: 1}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_told_once_when_nobody_else_is_left(name: str) -> None:
    fleet = Fleet(spec("a"))
    _, heard = fleet.dispatch()
    RETRIED[name][0](fleet.client.last)
    assert (heard.status, heard.ended, len(heard.errors)) == (None, 0, 1)
    assert fleet.in_flight() == {"a": 0}


@pytest.mark.parametrize("name", STATUSES)
def test_a_refusal_is_delivered_whole_when_nobody_else_is_left(name: str) -> None:
    fleet = Fleet(spec("a"), spec("b"))
    _, heard = fleet.dispatch()
    RETRIED[name][0](fleet.client.last)
    RETRIED[name][0](fleet.client.last)
    assert (heard.status, heard.backend, heard.ended, heard.errors) == (int(name[:3]), "b", 1, [])
    assert b"".join(heard.pieces) in (b"no", b"busy", b"slow down", b"")
    assert fleet.in_flight() == {"a": 0, "b": 0}


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_4xx_is_delivered_as_it_is_and_says_nothing_of_the_backend(status: int) -> None:
    fleet = Fleet(spec("a"), spec("b"))
    for _ in range(10):
        dispatch, heard = fleet.dispatch()
        fleet.client.last.answer(status, b"your fault")
        assert (heard.status, heard.pieces, heard.ended) == (status, [b"your fault"], 1)
        assert [a.outcome for a in dispatch.attempts] == [AttemptOutcome.REFUSED]
    assert health(fleet, "a") is Health.READY


def test_a_4xx_does_not_count_as_a_success_either() -> None:
    fleet = Fleet(spec("a"))
    for play in (fails_with(StreamBroken("x")), fails_with(StreamBroken("x")), answers(400, b"")):
        fleet.dispatch()
        play(fleet.client.last)
    fleet.dispatch()
    fleet.client.last.sink.error(StreamBroken("x"))
    assert health(fleet, "a") is Health.EJECTED


def test_no_more_than_the_allowed_attempts_are_made() -> None:
    fleet = Fleet(*(spec(n) for n in "abcde"), max_attempts=3)
    dispatch, heard = fleet.dispatch()
    for _ in range(3):
        fleet.client.last.sink.error(ConnectFailed("x"))
    assert len({a.backend_id for a in dispatch.attempts}) == len(fleet.client.exchanges) == 3
    assert len(heard.errors) == 1


def test_a_stream_that_breaks_after_its_first_byte_is_told_and_never_retried() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    for count in range(3):
        dispatch, heard = fleet.dispatch()
        exchange = fleet.client.last
        assert exchange.backend == "a"
        exchange.sink.head(200, [])
        exchange.sink.piece(b"half")
        exchange.sink.error(StreamBroken("cut"))
        assert (heard.pieces, heard.ended, len(heard.errors)) == ([b"half"], 0, 1)
        assert isinstance(heard.errors[0], StreamBroken)
        assert [a.outcome for a in dispatch.attempts] == [AttemptOutcome.BROKEN]
        assert len(fleet.client.exchanges) == count + 1
    assert health(fleet, "a") is Health.EJECTED


def test_an_engine_error_inside_a_good_looking_stream_counts_as_broken() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    for _ in range(3):
        dispatch, heard = fleet.dispatch()
        fleet.client.last.sink.head(200, [])
        fleet.client.last.sink.piece(b'data: {"error": ')
        dispatch.broke_inside()
        fleet.client.last.sink.end()
        assert (heard.ended, dispatch.attempts[0].outcome) == (1, AttemptOutcome.BROKEN)
    assert health(fleet, "a") is Health.EJECTED


def test_it_counts_as_broken_also_if_the_listener_leaves_on_seeing_the_error() -> None:
    fleet = Fleet(spec("a"))
    dispatch, _ = fleet.dispatch()
    fleet.client.last.sink.head(200, [])
    fleet.client.last.sink.piece(b'data: {"error": ')
    dispatch.broke_inside()
    dispatch.cancel()
    assert (dispatch.attempts[0].outcome, fleet.client.last.cancelled) == (AttemptOutcome.BROKEN, True)


def test_a_hung_backend_whose_health_passes_is_ejected_by_the_first_token_deadline() -> None:
    fleet = Fleet(spec("hung"), spec("well"))
    for _ in range(3):
        fleet.dispatch()
        assert fleet.client.last.backend == "hung"
        fleet.client.last.sink.error(FirstTokenTimeout("x"))
        fleet.client.last.answer(200, b"good")
        fleet.probe_all()
    backends = set()
    for _ in range(20):
        fleet.dispatch()
        backends.add(fleet.client.last.backend)
        fleet.client.last.answer(200, b"good")
    assert backends == {"well"}


def test_overload_sends_requests_elsewhere_and_ejects_nobody() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    for _ in range(10):
        fleet.dispatch()
        if fleet.client.last.backend == "a":
            fleet.client.last.answer(503, b"busy")
        fleet.client.last.answer(200, b"good")
    assert [e.backend for e in fleet.client.exchanges].count("a") == 1
    assert health(fleet, "a") is Health.OVERLOADED


def test_a_very_large_refusal_is_passed_on_rather_than_held() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    _, heard = fleet.dispatch()
    big = b"x" * (MAX_HELD_BYTES // 2 + 1)
    fleet.client.last.answer(500, big, big, big)
    assert (heard.status, heard.pieces, heard.ended) == (500, [big, big, big], 1)
    assert len(fleet.client.exchanges) == 1
    assert fleet.in_flight() == {"a": 0, "b": 0}


async def test_without_any_usable_backend_the_caller_is_told_503_after_dispatch_returned() -> None:
    fleet = Fleet(spec("a"))
    for _ in range(2):
        fleet.probe_all(ProbeResult(ProbeStatus.UNREACHABLE))
    dispatch, heard = fleet.dispatch()
    assert heard == Heard()
    assert dispatch.attempts == []
    await asyncio.sleep(0)
    (error,) = heard.errors
    assert isinstance(error, Rejected)
    assert (error.reason, error.status) == (RejectReason.NO_HEALTHY_BACKEND, 503)
    assert error.retry_after_s == 2.0
    dispatch.cancel()
    assert fleet.client.exchanges == []


async def test_when_all_are_full_the_caller_is_told_429_with_a_time_to_wait() -> None:
    fleet = Fleet(spec("a", max_concurrent=1), spec("b", max_concurrent=1))
    for _ in range(2):
        fleet.dispatch(max_output_tokens=4000)
    _, heard = fleet.dispatch()
    await asyncio.sleep(0)
    (error,) = heard.errors
    assert isinstance(error, Rejected)
    assert (error.reason, error.status) == (RejectReason.QUEUE_FULL, 429)
    assert error.retry_after_s is not None
    assert 1 <= error.retry_after_s <= 60
    fleet.client.exchanges[0].answer(200, b"done")
    _, heard = fleet.dispatch()
    assert fleet.client.last.backend == "a"


async def test_a_refusal_isn_t_delivered_to_a_caller_who_left() -> None:
    fleet = Fleet()
    dispatch, heard = fleet.dispatch()
    dispatch.cancel()
    await asyncio.sleep(0)
    assert heard == Heard()


def test_a_burst_is_spread_although_nobody_has_answered_yet() -> None:
    fleet = Fleet(*(spec(n) for n in "abcd"))
    for _ in range(16):
        fleet.dispatch()
    assert fleet.in_flight() == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_the_faster_backend_gets_more_once_its_speed_is_learned() -> None:
    fleet = Fleet(spec("slow", max_concurrent=64), spec("fast", max_concurrent=64))
    for fleet.draw, seconds in ((0.0, 10.0), (0.9, 1.0)):
        dispatch, _ = fleet.dispatch()
        fleet.clock.advance(seconds)
        fleet.client.last.answer(200, b"x")
        dispatch.finished(prompt_tokens=100, output_tokens=100)
        dispatch.finished(prompt_tokens=100, output_tokens=1)
    fleet.probe_all()
    for _ in range(20):
        fleet.dispatch()
    assert fleet.in_flight()["fast"] > 4 * fleet.in_flight()["slow"]


@pytest.mark.parametrize("how", ["refused", "paused", "broken", "cancelled", "unanswered", "uncounted"])
def test_nothing_is_learned_of_speed_from_what_was_not_a_plain_answer(how: str) -> None:
    fleet = Fleet(spec("a"))
    dispatch, _ = fleet.dispatch()
    sink = fleet.client.last.sink
    if how == "paused":
        dispatch.pause()
        dispatch.resume()
    if how != "unanswered":
        sink.head(404 if how == "refused" else 200, [])
        sink.piece(b"x")
    if how == "broken":
        sink.error(StreamBroken("x"))
    elif how == "cancelled":
        dispatch.cancel()
    elif how != "unanswered":
        sink.end()
    dispatch.finished(prompt_tokens=10, output_tokens=0 if how == "uncounted" else 10)
    assert fleet.registry.snapshot()[0].ms_per_work is None


def test_pause_and_resume_reach_the_engine_also_after_a_retry() -> None:
    fleet = Fleet(spec("a"), spec("b"))
    dispatch, _ = fleet.dispatch()
    dispatch.pause()
    fleet.client.last.sink.error(ConnectFailed("x"))
    assert fleet.client.last.backend == "b"
    assert fleet.client.last.paused
    dispatch.resume()
    assert not fleet.client.last.paused


def test_a_listener_that_leaves_while_told_the_head_hears_nothing_more() -> None:
    fleet = Fleet(spec("a"))
    heard = Heard()
    dispatch, _ = fleet.dispatch(heard)
    heard.on_head = dispatch.cancel
    fleet.client.last.sink.head(200, [])
    fleet.client.last.sink.piece(b"x")
    assert (heard.pieces, heard.ended, fleet.client.last.cancelled) == ([], 0, True)
    assert fleet.in_flight() == {"a": 0}


def test_a_request_that_cannot_be_built_takes_no_place() -> None:
    fleet = Fleet(spec("a"))

    def broken_call(_: object) -> object:
        raise ValueError("a header holds a line break")

    with pytest.raises(ValueError, match="line break"):
        fleet.dispatcher.dispatch(
            demand(),
            broken_call,
            deadlines=DEADLINES,
            sink=Heard(),  # type: ignore[arg-type]
        )
    assert fleet.in_flight() == {"a": 0}


def test_the_end_of_the_whole_time_is_told_but_not_held_against_the_backend() -> None:
    fleet = Fleet(spec("a"))
    for _ in range(5):
        dispatch, heard = fleet.dispatch()
        fleet.client.last.sink.head(200, [])
        fleet.client.last.sink.piece(b"long")
        fleet.client.last.sink.error(StreamBroken("x", reason="total deadline", bytes_received=4))
        assert (len(heard.errors), dispatch.attempts[0].outcome) == (1, AttemptOutcome.TIMED_OUT)
    assert health(fleet, "a") is Health.READY


STEPS = ["connect failed", "broken after its head", "503", "500"]


@given(
    failures=st.lists(st.sampled_from(STEPS), max_size=4),
    ending=st.sampled_from(["whole", "broken", "open"]),
    cancel_at=st.integers(0, 8),
    backends=st.integers(1, 4),
)
def test_wherever_it_is_cancelled_every_place_is_given_back_once_and_silence_follows(
    failures: list[str], ending: str, cancel_at: int, backends: int
) -> None:
    fleet = Fleet(*(spec(n) for n in "abcd"[:backends]))
    dispatch, heard = fleet.dispatch()
    plays: list[Play] = [RETRIED[name][0] for name in failures]
    plays += [lambda e: e.sink.head(200, []), lambda e: e.sink.piece(b"x")]
    if ending != "open":
        plays.append(lambda e: e.sink.end() if ending == "whole" else e.sink.error(StreamBroken("x")))
    for step, play in enumerate(plays):
        if step == cancel_at:
            said = (heard.status, len(heard.pieces), heard.ended, len(heard.errors))
            dispatch.cancel()
            dispatch.cancel()
            assert said == (heard.status, len(heard.pieces), heard.ended, len(heard.errors))
            break
        if heard.ended or heard.errors:
            break
        assert sum(fleet.in_flight().values()) == 1
        play(fleet.client.last)
    else:
        dispatch.cancel()
    assert set(fleet.in_flight().values()) == {0}
    assert heard.ended + len(heard.errors) <= 1
    assert AttemptOutcome.RUNNING not in {a.outcome for a in dispatch.attempts}
    assert sum(fleet.dispatcher.metrics.attempts.values()) == len(dispatch.attempts)
    if not (heard.ended or heard.errors):
        assert fleet.client.last.cancelled
