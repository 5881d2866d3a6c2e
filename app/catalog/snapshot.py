"""What the data plane knows of keys, tenants, models, backends and prices: in memory, read without a query.

`feed.py` keeps it up to date. A reader takes what it needs in one go and never across an `await`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.catalog.limits import Limit, Limits
from app.core.ids import AllowanceId, DeploymentId, KeyId, ModelId, PriceBookId, ProjectId, TenantId
from billing.rating.schedule import Schedule
from scheduler.registry.model import BackendSpec


class Key(msgspec.Struct, frozen=True):
    """An API key: a credential of a project. `models` None: every model."""

    key_id: KeyId
    tenant_id: TenantId
    project_id: ProjectId
    digest: bytes
    scopes: frozenset[str]
    models: frozenset[str] | None
    expires_ms: int | None
    revoked_ms: int | None


class Tenant(msgspec.Struct, frozen=True):
    """Who pays.   price_book_id: its own, else its plan's.   wallet_allowance_id None: it can't spend yet.

    on_suspend: what becomes of its running streams when it is suspended: `finish` or `cut`.
    """

    tenant_id: TenantId
    status: str
    currency: str
    price_book_id: PriceBookId | None
    wallet_allowance_id: AllowanceId | None
    on_suspend: str = "finish"


class Model(msgspec.Struct, frozen=True):
    """A published model that has a deployment.   tokenizer: path of its `tokenizer.json`, if it has one."""

    model_id: ModelId
    name: str
    context_limit: int
    max_output_tokens: int
    default_output_tokens: int
    created_ms: int
    deployment_id: DeploymentId
    tokenizer: str | None = None


class Fleet(msgspec.Struct, frozen=True):
    """The part of the catalogue that is replaced as a whole."""

    models: dict[str, Model]
    backends: tuple[BackendSpec, ...]
    schedule: Schedule
    default_books: dict[str, PriceBookId]


EMPTY_FLEET = Fleet({}, (), Schedule(()), {})


class Snapshot:
    """The present state of the catalogue. Written by the feed only.

    loaded_ms: when a full load last succeeded, None before the first.
    """

    def __init__(self) -> None:
        self.loaded_ms: int | None = None
        self.fleet = EMPTY_FLEET
        self._keys: dict[bytes, Key] = {}
        self._digests: dict[KeyId, bytes] = {}
        self._tenants: dict[TenantId, Tenant] = {}
        self._archived: frozenset[ProjectId] = frozenset()
        self._clamping: frozenset[ProjectId] = frozenset()
        self.limit_book = Limits()

    def key(self, digest: bytes) -> Key | None:
        """The key with this SHA-256, whatever its state."""
        return self._keys.get(digest)

    def tenant(self, tenant_id: TenantId) -> Tenant | None:
        return self._tenants.get(tenant_id)

    def model(self, name: str) -> Model | None:
        return self.fleet.models.get(name)

    def is_archived(self, project_id: ProjectId) -> bool:
        return project_id in self._archived

    def clamps_output(self, project_id: ProjectId) -> bool:
        """True if a request of the project gets less output rather than a refusal."""
        return project_id in self._clamping

    def limits(self, key: Key, model_id: ModelId, *, at_ms: int) -> tuple[Limit, ...]:
        """The limits of its tenant, project and key that hold for a request admitted then."""
        return self.limit_book.of(
            key.tenant_id,
            project_id=key.project_id,
            key_id=key.key_id,
            model_id=model_id,
            at_ms=at_ms,
        )

    def price_book(self, tenant: Tenant) -> PriceBookId | None:
        """The tenant's own book, else its plan's, else the default one of its currency."""
        return tenant.price_book_id or self.fleet.default_books.get(tenant.currency)

    def put_keys(self, keys: Iterable[Key], *, whole: bool) -> None:
        """Take these keys. whole: there are no others."""
        if whole:
            self._keys, self._digests = {}, {}
        for key in keys:
            self._keys[key.digest] = key
            self._digests[key.key_id] = key.digest

    def drop_key(self, key_id: KeyId) -> None:
        digest = self._digests.pop(key_id, None)
        if digest is not None:
            self._keys.pop(digest, None)

    def put_tenants(self, tenants: Iterable[Tenant], *, whole: bool) -> None:
        """Take these tenants. whole: there are no others."""
        if whole:
            self._tenants = {}
        for tenant in tenants:
            self._tenants[tenant.tenant_id] = tenant

    def drop_tenant(self, tenant_id: TenantId) -> None:
        self._tenants.pop(tenant_id, None)

    def put_projects(self, archived: Iterable[ProjectId], clamping: Iterable[ProjectId] = ()) -> None:
        """Take the projects that are archived, and those that clamp; all others are and do not."""
        self._archived, self._clamping = frozenset(archived), frozenset(clamping)

    def counts(self) -> dict[str, int]:
        """How much it holds, for health and metrics."""
        return {
            "keys": len(self._keys),
            "tenants": len(self._tenants),
            "models": len(self.fleet.models),
            "backends": len(self.fleet.backends),
            "limits": self.limit_book.count(),
        }
