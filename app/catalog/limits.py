"""Which limits hold for a request: found once for each key and model, remembered until they change."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from app.core.ids import AllowanceId, KeyId, ModelId, ProjectId, TenantId
from billing.quota.model import Rate

_EVER = 1 << 62
_MOST_CACHED = 50_000
"""Combinations of key and model that are remembered of one tenant."""


class Limit(msgspec.Struct, frozen=True):
    """One limit in one period; its allowance is where it is kept.

    amount: of a rate, per minute.   [start_ms, end_ms): its period, of calendar windows only.
    source: `plan:<id>` or `override:<id>`.   rate: set if, and only if, the window is `minute`.
    """

    allowance_id: AllowanceId
    scope_kind: str
    scope_id: str
    model_id: ModelId | None
    what: str
    window: str
    amount: int
    burst: int | None
    start_ms: int | None
    end_ms: int | None
    source: str
    rate: Rate | None = None


class LimitState(msgspec.Struct, frozen=True):
    """Of a tenant's limits.   version: grows with each change.   in_ms: when they change by themselves."""

    version: int
    in_ms: int | None


class _Standing(msgspec.Struct, frozen=True):
    """What holds for a key and a model in [from_ms, until_ms)."""

    from_ms: int
    until_ms: int
    limits: tuple[Limit, ...]


_NONE = _Standing(-_EVER, _EVER, ())


class Limits:
    """The limits of all tenants. Written by the feed only."""

    def __init__(self) -> None:
        self._scopes: dict[TenantId, dict[str, tuple[Limit, ...]]] = {}
        self._standing: dict[TenantId, dict[tuple[KeyId, ModelId], _Standing]] = {}
        self._due_s: dict[TenantId, float] = {}
        self._versions: dict[TenantId, int] = {}

    def of(
        self, tenant_id: TenantId, *, project_id: ProjectId, key_id: KeyId, model_id: ModelId, at_ms: int
    ) -> tuple[Limit, ...]:
        """The limits that hold at a moment: of none before the first period that is known of it.

        Where the next period isn't known yet, the last one goes on.
        """
        standing = self._standing.get(tenant_id, {}).get((key_id, model_id))
        if standing is None or not standing.from_ms <= at_ms < standing.until_ms:
            standing = self._stand(tenant_id, (tenant_id, project_id, key_id), model_id=model_id, at_ms=at_ms)
            cache = self._standing.setdefault(tenant_id, {})
            if len(cache) >= _MOST_CACHED:
                cache.clear()
            cache[key_id, model_id] = standing
        return standing.limits

    def lacks(self, tenant_id: TenantId, version: int) -> bool:
        """True unless what it has of a tenant is of this version. Version 0: there never were any."""
        return self._versions.get(tenant_id, 0) != version

    def put(self, tenant_id: TenantId, limits: Iterable[Limit], *, version: int) -> None:
        """Take all limits of a tenant; it has no others.   version: read before them, never a later one."""
        self._versions[tenant_id] = version
        scopes: dict[str, list[Limit]] = {}
        for limit in limits:
            scopes.setdefault(limit.scope_id, []).append(limit)
        self._scopes[tenant_id] = {scope_id: tuple(found) for scope_id, found in scopes.items()}
        self._standing.pop(tenant_id, None)

    def put_scope(self, tenant_id: TenantId, scope_id: str, *, limits: Iterable[Limit]) -> None:
        """Take all limits of one of a tenant's scopes; it has no others."""
        self._scopes.setdefault(tenant_id, {})[scope_id] = tuple(limits)
        self._standing.pop(tenant_id, None)

    def put_due(self, due_s: dict[TenantId, float | None]) -> None:
        """Take when the limits of these tenants change by themselves next, on the monotonic clock."""
        for tenant_id, at_s in due_s.items():
            if at_s is None:
                self._due_s.pop(tenant_id, None)
            else:
                self._due_s[tenant_id] = at_s

    def next_due_s(self) -> float:
        """When some limits change by themselves next, on the monotonic clock; infinite if never."""
        return min(self._due_s.values(), default=float("inf"))

    def count(self) -> int:
        return sum(len(found) for scopes in self._scopes.values() for found in scopes.values())

    def _stand(
        self, tenant_id: TenantId, scope_ids: tuple[str, ...], *, model_id: ModelId, at_ms: int
    ) -> _Standing:
        scopes = self._scopes.get(tenant_id)
        if scopes is None:
            return _NONE
        from_ms, until_ms, chosen = -_EVER, _EVER, []
        found = [
            limit
            for scope_id in scope_ids
            for limit in scopes.get(scope_id, ())
            if limit.model_id is None or limit.model_id == model_id
        ]
        for _, group in groupby(sorted(found, key=_order), key=_name):
            periods = list(group)
            begun = sum(1 for limit in periods if (limit.start_ms or -_EVER) <= at_ms)
            if begun:
                chosen.append(periods[begun - 1])
                from_ms = max(from_ms, periods[begun - 1].start_ms or -_EVER)
            if begun < len(periods):
                until_ms = min(until_ms, periods[begun].start_ms or _EVER)
        return _Standing(from_ms, until_ms, tuple(chosen))


_DEPTH = {"tenant": 0, "project": 1, "key": 2}


def _name(limit: Limit) -> tuple[int, str, str, str]:
    """What a limit limits, whatever its period; those of the tenant first."""
    return (_DEPTH[limit.scope_kind], limit.model_id or "", limit.what, limit.window)


def _order(limit: Limit) -> tuple[tuple[int, str, str, str], int]:
    return (_name(limit), limit.start_ms or 0)
