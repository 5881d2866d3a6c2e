"""Who may do what: roles are sets of scopes, an actor is whoever calls.

A member without a tenant is staff of the operator and reaches every tenant; a member of a tenant
reaches that tenant only. Some scopes are staff's alone, whatever the role says: nobody grants
credit to their own wallet or enters engine addresses from within a tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.core.errors import Rejected, RejectReason
from app.core.ids import AccessTokenId, KeyId, MemberId, PriceBookId, ProjectId, TenantId


class Role(StrEnum):
    OPERATOR = "operator"
    FINANCE = "finance"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Scope(StrEnum):
    """What a route asks of its caller."""

    SELF_READ = "self:read"
    SELF_WRITE = "self:write"
    TENANTS_READ = "tenants:read"
    TENANTS_WRITE = "tenants:write"
    PROJECTS_READ = "projects:read"
    PROJECTS_WRITE = "projects:write"
    KEYS_READ = "keys:read"
    KEYS_WRITE = "keys:write"
    CATALOG_READ = "catalog:read"
    CATALOG_WRITE = "catalog:write"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    PRICES_READ = "prices:read"
    PRICES_WRITE = "prices:write"
    WALLETS_READ = "wallets:read"
    CREDIT_WRITE = "credit:write"
    USAGE_READ = "usage:read"
    REQUESTS_READ = "requests:read"
    LIMITS_READ = "limits:read"
    LIMITS_WRITE = "limits:write"
    TASKS_WRITE = "tasks:write"
    ALERTS_READ = "alerts:read"
    ALERTS_WRITE = "alerts:write"
    AUDIT_READ = "audit:read"
    MEMBERS_READ = "members:read"
    MEMBERS_WRITE = "members:write"


_VIEWER = frozenset(
    {
        Scope.SELF_READ,
        Scope.SELF_WRITE,
        Scope.TENANTS_READ,
        Scope.PROJECTS_READ,
        Scope.KEYS_READ,
        Scope.CATALOG_READ,
        Scope.PRICES_READ,
        Scope.WALLETS_READ,
        Scope.USAGE_READ,
        Scope.REQUESTS_READ,
        Scope.LIMITS_READ,
        Scope.ALERTS_READ,
    }
)
_STAFF_ONLY = frozenset(
    {
        Scope.TENANTS_WRITE,
        Scope.CATALOG_WRITE,
        Scope.FLEET_READ,
        Scope.FLEET_WRITE,
        Scope.PRICES_WRITE,
        Scope.CREDIT_WRITE,
        Scope.LIMITS_WRITE,
        Scope.AUDIT_READ,
        Scope.MEMBERS_READ,
        Scope.MEMBERS_WRITE,
    }
)
SCOPES_OF_ROLE: dict[Role, frozenset[Scope]] = {
    Role.OPERATOR: frozenset(Scope),
    Role.FINANCE: _VIEWER | {Scope.CREDIT_WRITE, Scope.AUDIT_READ, Scope.ALERTS_WRITE, Scope.TASKS_WRITE},
    Role.DEVELOPER: _VIEWER | {Scope.PROJECTS_WRITE, Scope.KEYS_WRITE, Scope.ALERTS_WRITE, Scope.TASKS_WRITE},
    Role.VIEWER: _VIEWER,
}


def scopes_of(role: Role, *, staff: bool) -> frozenset[Scope]:
    """The scopes of a role, for staff of the operator or for a member of a tenant."""
    scopes = SCOPES_OF_ROLE[role]
    return scopes if staff else scopes - _STAFF_ONLY


@dataclass(frozen=True)
class Actor:
    """Whoever calls: a member, or an API key that may read its project's usage.

    tenant_id: the one tenant it reaches; None: every tenant.   project_id: likewise, for a key.
    """

    id: MemberId | KeyId
    name: str
    tenant_id: TenantId | None
    scopes: frozenset[str]
    role: Role | None = None
    project_id: ProjectId | None = None

    @property
    def is_staff(self) -> bool:
        return self.tenant_id is None

    def require(self, scope: Scope) -> None:
        """Nothing if the actor has the scope. Raises Rejected (403) else."""
        if scope not in self.scopes:
            raise Rejected(
                RejectReason.SCOPE_MISSING,
                f"This needs the scope {scope.value}, which the caller's role does not have.",
                status=403,
                scope=scope.value,
            )


@dataclass(frozen=True)
class Tenant:
    id: TenantId
    name: str
    currency: str
    timezone: str
    status: str
    price_book_id: PriceBookId | None
    created_at: datetime
    on_suspend: str = "finish"


@dataclass(frozen=True)
class Project:
    id: ProjectId
    tenant_id: TenantId
    name: str
    status: str
    created_at: datetime
    clamp_output: bool = False


@dataclass(frozen=True)
class Member:
    id: MemberId
    tenant_id: TenantId | None
    email: str
    name: str
    role: Role
    status: str
    created_at: datetime

    def actor(self) -> Actor:
        """The member as a caller."""
        scopes = scopes_of(self.role, staff=self.tenant_id is None)
        return Actor(self.id, self.email, self.tenant_id, scopes, self.role)


@dataclass(frozen=True)
class ApiKey:
    """A credential of a project. Its secret is not here: only the digest of it is kept."""

    id: KeyId
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    prefix: str
    last_four: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_from: KeyId | None

    def state(self, now: datetime) -> str:
        """`active`, `expiring` (it has an end ahead), `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is None:
            return "active"
        return "expiring" if self.expires_at > now else "expired"


@dataclass(frozen=True)
class AccessToken:
    """A member's credential for programs; its secret is not here."""

    id: AccessTokenId
    member_id: MemberId
    name: str
    last_four: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
