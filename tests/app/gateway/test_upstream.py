"""What the engine is sent: our values win whatever the client wrote, the rest stays byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalog.snapshot import Key, Model, Tenant
from app.core import ids
from app.core.ids import BackendId, DeploymentId, ModelId, PriceVersionId
from app.gateway.body import parse
from app.gateway.model import Admission, Endpoint, Principal
from app.gateway.upstream import engine_request, spliced
from billing.journal.model import Admitted
from billing.quota.lease import Hold
from billing.rating.model import Rates
from scheduler.registry.model import BackendSpec

_TENANT = ids.tenant_id()


def _admission(body: bytes, *, max_tokens: int, endpoint: Endpoint = Endpoint.CHAT) -> Admission:
    ask = parse(body, endpoint)
    key = Key(ids.key_id(), _TENANT, ids.project_id(), b"", frozenset(), None, None, None)
    record = Admitted(
        request_id=ids.request_id(),
        at_ms=0,
        tenant_id=_TENANT,
        project_id=key.project_id,
        key_id=key.key_id,
        model_id=ModelId("mdl_1"),
        model_name=ask.model,
        deployment_id=DeploymentId("dep_1"),
        endpoint=endpoint.value,
        streamed=ask.streamed,
        currency="USD",
        price_version_id=PriceVersionId("pbv_1"),
        rates=Rates(1, 1, 1, 1),
        input_bound=1,
        output_bound=1,
        holds=(),
    )
    model = Model(record.model_id, ask.model, 4096, 1024, 64, 0, record.deployment_id)
    principal = Principal(key, Tenant(_TENANT, "active", "USD", None, None))
    return Admission(record, Hold((), ()), ask, principal, model, max_tokens)


def _backend(engine: str = "vllm", served: str = "m") -> BackendSpec:
    return BackendSpec(BackendId("bck_1"), DeploymentId("dep_1"), "http://e", engine, served, 8)


def _sent(
    members: dict[str, Any], *, max_tokens: int = 8, engine: str = "vllm", served: str = "m"
) -> dict[str, Any]:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members})
    request = engine_request(_admission(body, max_tokens=max_tokens), _backend(engine, served))
    decoded: dict[str, Any] = msgspec.json.decode(request.body)
    return decoded


def test_a_stream_always_asks_for_its_usage() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert _sent({"stream": True})["stream_options"] == options
    assert _sent({"stream": True, "stream_options": {"include_usage": False}})["stream_options"] == options
    assert "stream_options" not in _sent({})


def test_a_llama_server_is_asked_for_its_timings_and_gets_no_foreign_fields() -> None:
    sent = _sent({"stream": True}, engine="llama-server")
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["timings_per_token"] is True
    assert "cache_salt" not in sent


def test_a_missing_limit_is_set_and_one_too_high_is_cut() -> None:
    assert _sent({}, max_tokens=64)["max_tokens"] == 64
    assert _sent({"max_tokens": 5000}, max_tokens=1024)["max_tokens"] == 1024


def test_both_names_of_the_limit_say_the_same() -> None:
    sent = _sent({"max_completion_tokens": 9, "max_tokens": 700}, max_tokens=9)
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (9, 9)


@pytest.mark.parametrize("limits", [{}, {"max_tokens": 3}, {"max_tokens": 10**6}, {"max_tokens": None}])
def test_completions_know_no_second_limit_either(limits: dict[str, Any]) -> None:
    members = {"model": "m", "prompt": "a", "max_completion_tokens": 10**6, **limits}
    admission = _admission(msgspec.json.encode(members), max_tokens=8, endpoint=Endpoint.COMPLETIONS)
    sent = msgspec.json.decode(engine_request(admission, _backend("llama-server")).body)
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (8, 8)


def test_the_engine_hears_its_own_name_of_the_model() -> None:
    assert _sent({}, served="/weights/x")["model"] == "/weights/x"


def test_tenants_have_different_salts_and_one_keeps_its_own() -> None:
    assert _sent({})["cache_salt"] == _sent({"cache_salt": "mine"})["cache_salt"]
    assert _sent({})["cache_salt"] != "mine"


def test_no_header_of_the_client_is_passed_on() -> None:
    body = b'{"model":"m","messages":[{"content":"a"}],"stream":true}'
    request = engine_request(_admission(body, max_tokens=8), _backend())
    assert [name for name, _ in request.headers] == [b"content-type", b"accept", b"x-request-id"]


@pytest.mark.parametrize("tail", [b"", b" ", b"\r\n\t "])
def test_the_prompt_is_not_encoded_a_second_time(tail: bytes) -> None:
    body = b'{"model":"m", "messages":[{"content":"\\u00e9 \\n"}],"max_tokens":8}' + tail
    sent = engine_request(_admission(body, max_tokens=8), _backend()).body
    assert sent.startswith(body.rstrip()[:-1])


@given(st.dictionaries(st.text(min_size=1), st.integers(), min_size=1), st.integers())
def test_what_is_spliced_in_wins_over_the_same_key(members: dict[str, int], value: int) -> None:
    key = next(iter(members))
    body = spliced(msgspec.json.encode(members), [msgspec.json.encode(key) + b":%d" % value])
    assert msgspec.json.decode(body) == {**members, key: value}
