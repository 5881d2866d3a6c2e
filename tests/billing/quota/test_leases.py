"""Admission from memory: all or none, settled once, returned only when durable."""

from __future__ import annotations

import pytest

from app.core.ids import AllowanceId
from billing.quota.lease import Lease
from billing.quota.leases import Leases
from billing.quota.model import Need

A, B = AllowanceId("alw_a"), AllowanceId("alw_b")


def lent(leases: Leases, allowance: AllowanceId, amount: int) -> Lease:
    lease = leases.lease(allowance)
    lease.granted = lease.free = amount
    return lease


def test_a_need_is_taken_from_what_is_free() -> None:
    leases = Leases()
    lease = lent(leases, A, 10)
    assert leases.admit([Need(A, 7)]) is not None
    assert (lease.free, lease.held, lease.taken) == (3, 7, 7)
    assert leases.admit([Need(A, 4)]) is None
    assert (lease.free, lease.held, lease.taken) == (3, 7, 7)


def test_all_needs_are_taken_or_none() -> None:
    leases = Leases()
    a, b = lent(leases, A, 10), lent(leases, B, 1)
    assert leases.admit([Need(A, 3), Need(B, 2)]) is None
    assert (a.free, a.held, a.taken, b.free) == (10, 0, 0, 1)
    assert leases.admit([Need(A, 3), Need(B, 1)]) is not None
    assert (a.free, b.free) == (7, 0)


def test_one_allowance_named_twice_is_not_admitted_twice_from_the_same() -> None:
    leases = Leases()
    lease = lent(leases, A, 5)
    assert leases.admit([Need(A, 3), Need(A, 3)]) is None
    assert (lease.free, lease.held) == (5, 0)


def test_a_need_of_nothing_is_admitted_without_a_lease() -> None:
    assert Leases().admit([Need(A, 0)]) is not None


@pytest.mark.parametrize("amount", [-1, -(10**20)])
def test_a_need_below_nothing_is_a_defect(amount: int) -> None:
    leases = Leases()
    lent(leases, A, 5)
    with pytest.raises(AssertionError):
        leases.admit([Need(A, amount)])


@pytest.mark.parametrize(("used", "free"), [(0, 10), (3, 7), (6, 4), (9, 4)])
def test_what_a_settlement_frees_is_admitted_from_at_once_and_returned_when_durable(
    used: int, free: int
) -> None:
    leases = Leases()
    lease = lent(leases, A, 10)
    hold = leases.admit([Need(A, 6)])
    assert hold is not None
    release = leases.settle(hold, {A: used})
    assert (lease.free, lease.returnable, lease.held) == (free, 4, 0)
    assert leases.admit([Need(A, free)]) is not None
    assert lease.returnable == 0
    release.durable()
    release.durable()
    assert lease.pending == 0


def test_a_hold_is_settled_once() -> None:
    leases = Leases()
    lent(leases, A, 10)
    hold = leases.admit([Need(A, 6)])
    assert hold is not None
    leases.settle(hold, {A: 1})
    with pytest.raises(AssertionError, match="exactly once"):
        leases.settle(hold, {A: 1})
    with pytest.raises(AssertionError, match="exactly once"):
        leases.withdraw(hold)


def test_a_settlement_names_every_allowance_of_its_hold() -> None:
    leases = Leases()
    lent(leases, A, 10)
    hold = leases.admit([Need(A, 6)])
    assert hold is not None
    with pytest.raises(KeyError):
        leases.settle(hold, {B: 1})
    leases.settle(hold, {A: 1})


def test_a_hold_without_a_record_is_undone() -> None:
    leases = Leases()
    lease = lent(leases, A, 10)
    hold = leases.admit([Need(A, 6)])
    assert hold is not None
    leases.withdraw(hold)
    assert (lease.free, lease.held, lease.returnable) == (10, 0, 10)


def test_more_than_may_return_is_never_given_back() -> None:
    lease = lent(Leases(), A, 10)
    with pytest.raises(AssertionError):
        lease.give_back(11)
