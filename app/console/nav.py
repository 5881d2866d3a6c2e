"""The only list of the console's destinations: path, label, and the scope that shows them."""

from __future__ import annotations

from dataclasses import dataclass

from app.identity.model import Actor, Scope


@dataclass(frozen=True)
class Destination:
    """A page in the navigation.   path: below the console's own root."""

    path: str
    label: str
    scope: Scope


DESTINATIONS = (
    Destination("/", "Home", Scope.SELF_READ),
    Destination("/requests", "Requests", Scope.REQUESTS_READ),
    Destination("/wallets", "Wallets", Scope.WALLETS_READ),
    Destination("/reconciliation", "Reconciliation", Scope.AUDIT_READ),
)


def reachable(actor: Actor) -> tuple[Destination, ...]:
    """What an actor may open, in the order of the navigation. Each page checks its scope anyway."""
    return tuple(destination for destination in DESTINATIONS if destination.scope in actor.scopes)
