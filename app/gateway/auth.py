"""auth: from a bearer key to who asks and who pays. The key itself is never kept or shown."""

from __future__ import annotations

import hashlib

from app.catalog.snapshot import Key, Model, Snapshot
from app.core.errors import Rejected, RejectReason
from app.core.ids import TenantId
from app.gateway.model import Headers, Principal

INFERENCE = "inference"
_BEARER = b"bearer "


def find_key(headers: Headers, snapshot: Snapshot) -> Key:
    """The key that a request carries, whatever its state. Raises Rejected (401); it does not echo the key."""
    digest = _digest(headers)
    if digest is None:
        raise Rejected(
            RejectReason.KEY_MISSING,
            "No API key was given. Send it as `Authorization: Bearer sk-sy-…`.",
            status=401,
        )
    key = snapshot.key(digest)
    if key is None:
        raise Rejected(
            RejectReason.KEY_UNKNOWN,
            "The API key is not known. Check that it is whole and has not been replaced.",
            status=401,
        )
    return key


def authorize(key: Key, snapshot: Snapshot, *, now_ms: int, scope: str = INFERENCE) -> Principal:
    """Who may act with this key now. Raises Rejected (401 for the key, 403 for who owns it)."""
    if key.revoked_ms is not None and key.revoked_ms <= now_ms:
        raise Rejected(RejectReason.KEY_REVOKED, "The API key was revoked.", status=401)
    if key.expires_ms is not None and key.expires_ms <= now_ms:
        raise Rejected(RejectReason.KEY_EXPIRED, "The API key has expired.", status=401)
    tenant = snapshot.tenant(key.tenant_id)
    if tenant is None or tenant.status != "active":
        raise suspended()
    if snapshot.is_archived(key.project_id):
        raise Rejected(RejectReason.PROJECT_ARCHIVED, "The project of this key is archived.", status=403)
    if scope not in key.scopes:
        raise Rejected(
            RejectReason.SCOPE_MISSING, f"The API key lacks the scope `{scope}`.", status=403, limit=scope
        )
    return Principal(key, tenant)


def suspended() -> Rejected:
    """The refusal of a tenant that is suspended or closed."""
    return Rejected(RejectReason.TENANT_SUSPENDED, "The tenant of this key is not active.", status=403)


def is_cut(tenant_id: TenantId, snapshot: Snapshot) -> bool:
    """True if what runs of a tenant ends now, since it was suspended and is not to finish."""
    tenant = snapshot.tenant(tenant_id)
    return tenant is not None and tenant.status != "active" and tenant.on_suspend == "cut"


def choose_model(name: str, principal: Principal, *, snapshot: Snapshot) -> Model:
    """The model of this name. Raises Rejected: 404 if there is none, 403 if the key may not use it.

    A key that is limited to some models learns nothing of others: they are forbidden, known or not.
    """
    allowed = principal.key.models
    if allowed is not None and name not in allowed:
        raise Rejected(
            RejectReason.MODEL_NOT_ALLOWED, "The API key may not use this model.", status=403, param="model"
        )
    model = snapshot.model(name)
    if model is None:
        raise Rejected(
            RejectReason.MODEL_UNKNOWN,
            "The model does not exist. `GET /v1/models` lists those that this key may use.",
            status=404,
            param="model",
        )
    return model


def usable_models(principal: Principal, snapshot: Snapshot) -> list[Model]:
    """The models that the key may use, by name."""
    allowed = principal.key.models
    return [
        model
        for name, model in sorted(snapshot.fleet.models.items())
        if allowed is None or name in allowed
    ]  # fmt: skip


def _digest(headers: Headers) -> bytes | None:
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == _BEARER:
            secret = value[7:].strip()
            return hashlib.sha256(secret).digest() if secret else None
    return None
