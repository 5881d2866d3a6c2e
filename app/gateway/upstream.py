"""Makes the engine's request from the client's: the body by a byte splice, the headers anew. Pure.

What we set is appended as the object's last member. Engines take the last of a repeated key, so a
client's own value, however often it is given, never wins; and the prompt is not encoded a second time.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from app.core.ids import TenantId
from app.gateway.dialect import dialect_of
from app.gateway.model import Admission
from scheduler.registry.model import BackendSpec
from scheduler.transport.model import EngineRequest

_BLANK = b" \t\r\n"
_JSON = (b"content-type", b"application/json")
_ACCEPT_JSON = (b"accept", b"application/json")
_ACCEPT_STREAM = (b"accept", b"text/event-stream")
_encode = msgspec.json.encode


def engine_request(admission: Admission, backend: BackendSpec) -> EngineRequest:
    """What is sent to this backend. No header of the client's is passed on."""
    ask = admission.ask
    return EngineRequest(
        method="POST",
        path=ask.endpoint.value,
        headers=(
            _JSON,
            _ACCEPT_STREAM if ask.streamed else _ACCEPT_JSON,
            (b"x-request-id", admission.request_id.encode()),
        ),
        body=spliced(ask.body, _members(admission, backend)),
    )


def spliced(body: bytes, members: list[bytes]) -> bytes:
    """The JSON object `body` with these encoded members appended. It has a member already: it was parsed."""
    if not members:
        return body
    return body.rstrip(_BLANK)[:-1] + b"," + b",".join(members) + b"}"


def _members(admission: Admission, backend: BackendSpec) -> list[bytes]:
    ask, dialect = admission.ask, dialect_of(backend.engine)
    members = []
    if backend.served_model != ask.model:
        members.append(b'"model":' + _encode(backend.served_model))
    if ask.max_tokens != admission.max_tokens or ask.gave_max_completion_tokens:
        members.append(b'"max_tokens":%d' % admission.max_tokens)
    if ask.gave_max_completion_tokens:  # for completions too: llama-server lets it win there as well
        members.append(b'"max_completion_tokens":%d' % admission.max_tokens)
    if ask.streamed:
        continuous = b',"continuous_usage_stats":true' if dialect.continuous else b""
        members.append(b'"stream_options":{"include_usage":true' + continuous + b"}")
        if dialect.timings:
            members.append(b'"timings_per_token":true')
    if dialect.salt:
        members.append(b'"cache_salt":"' + cache_salt(admission.record.tenant_id) + b'"')
    return members


@lru_cache(maxsize=4096)
def cache_salt(tenant_id: TenantId) -> bytes:
    """Tells one tenant's prefix cache from another's, so that its timing says nothing of others' prompts."""
    return hashlib.sha256(b"cache-salt:" + tenant_id.encode()).hexdigest()[:32].encode()
