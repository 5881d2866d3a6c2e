"""How limits stand: what is used and lent of each, the most of the last days, and what each refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from app.core import ids
from app.core.database import connect_engine
from app.core.ids import AllowanceId, ModelId, TenantId
from app.insights import limits as insights
from app.insights.limits import Place, Stand, Standing
from billing.journal.model import Refused
from billing.metering.model import Usage
from billing.quota import limits
from billing.quota.terms import Scope, Subject, What, Window
from tests.app.insights.metered import Payer, Traffic, settled


def _minute(*, ago_min: int) -> datetime:
    """The start of a whole minute in the past."""
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=ago_min)


async def _limit(
    traffic: Traffic, what: What, window: Window, amount: int | None, *, scope: Scope = "tenant", **more: Any
) -> None:
    payer = traffic.payers[0]
    project_id, key_id, _ = payer.keys[0]
    scope_id = {"tenant": payer.tenant_id, "project": project_id, "key": key_id}[scope]
    model_id = ModelId(traffic.models[more["model"]]) if "model" in more else None
    async with traffic.world.engine.begin() as connection:
        await limits.override(
            connection,
            tenant_id=TenantId(payer.tenant_id),
            scope_id=scope_id,
            subject=Subject(scope, what, window, model_id),
            amount=amount,
            reason="test",
            by="test",
        )


async def _standing(traffic: Traffic, *, model: str | None = None, most_s: int = 30) -> Standing:
    payer = traffic.payers[0]
    project_id, key_id, _ = payer.keys[0]
    place = Place(
        TenantId(payer.tenant_id),
        {payer.tenant_id: "Payer", project_id: "one", key_id: "one"},
        project_id,
        key_id,
        model and ModelId(traffic.models[model]),
    )
    async with traffic.world.engine.begin() as connection:
        return await insights.standing(connection, place, most_s=most_s)


async def _stand(traffic: Traffic, what: str, *, scope: str = "tenant") -> Stand:
    found = (await _standing(traffic)).stands[1:]
    return next(each for each in found if (each.what, each.scope_kind) == (what, scope))


async def _serve(traffic: Traffic, at: list[datetime], **facts: Any) -> None:
    made = [traffic.admitted(at=each, **facts) for each in at]
    await traffic.post([(each, settled(each, Usage(40, 20, output=40))) for each in made])


async def test_the_wallet_comes_first_with_what_it_has_spent(traffic: Traffic) -> None:
    await _serve(traffic, [_minute(ago_min=5)])
    found = await _standing(traffic)
    wallet = found.stands[0]
    spent = traffic.posted[0][1].cost_picos
    assert (wallet.source_kind, wallet.window, wallet.amount, wallet.used) == (
        "wallet",
        "balance",
        10 * 10**12,
        spent,
    )
    assert wallet.leased == 10**12 - spent
    assert wallet.available == 10 * 10**12 - spent - wallet.leased


async def test_the_peak_of_a_rate_is_the_most_of_a_minute_of_its_scope_and_model(traffic: Traffic) -> None:
    await _limit(traffic, "tokens", "minute", 1000)
    await _limit(traffic, "requests", "minute", 10, scope="key")
    await _limit(traffic, "output_tokens", "minute", 10, model="large")
    busy, calm = _minute(ago_min=90), _minute(ago_min=30)
    await _serve(traffic, [busy + timedelta(seconds=each) for each in (0, 30, 59)])
    await _serve(traffic, [busy] * 4, key=1)
    await _serve(traffic, [calm] * 2, model="large")
    await _serve(traffic, [datetime.now(UTC) - timedelta(days=8)] * 50)
    tokens, requests = await _stand(traffic, "tokens"), await _stand(traffic, "requests", scope="key")
    output = await _stand(traffic, "output_tokens")
    assert [(each.peak.amount, each.peak.at) for each in (tokens, requests, output) if each.peak] == [
        (700, busy),
        (3, busy),
        (80, calm),
    ]


async def test_the_peak_of_requests_at_once_is_by_their_overlap(traffic: Traffic) -> None:
    await _limit(traffic, "concurrent", "running", 5)
    start = _minute(ago_min=90)
    await _serve(traffic, [start + timedelta(milliseconds=each) for each in (0, 1500, 2000, 2999, 3000)])
    stand = await _stand(traffic, "concurrent")
    assert stand.peak is not None
    assert (stand.peak.amount, stand.peak.at) == (3, start + timedelta(milliseconds=2999))


async def test_the_peak_of_a_ceiling_is_the_largest_request_and_a_budget_has_none(traffic: Traffic) -> None:
    await _limit(traffic, "max_context", "request", 500)
    await _limit(traffic, "tokens", "month", 500)
    await _serve(traffic, [_minute(ago_min=9)] * 3)
    ceiling, budget = await _stand(traffic, "max_context"), await _stand(traffic, "tokens")
    assert ceiling.peak is not None
    assert (ceiling.peak.amount, ceiling.available, budget.peak) == (100, 500, None)
    assert budget.resets_at is not None
    assert budget.resets_at > datetime.now(UTC)


async def test_nothing_used_is_no_peak_and_no_limit_is_no_amount(traffic: Traffic) -> None:
    await _limit(traffic, "tokens", "minute", 1000)
    await _limit(traffic, "requests", "minute", None)
    tokens, requests = await _stand(traffic, "tokens"), await _stand(traffic, "requests")
    assert (tokens.peak, tokens.used, tokens.available) == (None, 0, 1000)
    assert tokens.resets_at is not None
    assert tokens.resets_at <= (await _standing(traffic)).at
    assert (requests.amount, requests.allowance_id, requests.source_name) == (None, None, "test")


async def test_refusals_are_counted_by_the_limit_that_refused(traffic: Traffic) -> None:
    await _limit(traffic, "tokens", "minute", 1000)
    allowance_id = (await _stand(traffic, "tokens")).allowance_id
    assert allowance_id is not None
    last = _minute(ago_min=3)
    for at in (last, last - timedelta(days=1), last - timedelta(days=8)):
        await traffic.refuse(_refused(traffic.payers[0], allowance_id, at=at))
    stand = await _stand(traffic, "tokens")
    assert (stand.refused, stand.refused_last) == (2, last)


async def test_only_limits_that_a_request_for_the_model_has_are_shown(traffic: Traffic) -> None:
    await _limit(traffic, "tokens", "minute", 1000, model="large")
    await _limit(traffic, "requests", "minute", 1000)
    small, large = await _standing(traffic, model="small"), await _standing(traffic, model="large")
    assert [each.what for each in small.stands] == ["picos", "requests"]
    assert [each.what for each in large.stands] == ["picos", "requests", "tokens"]


async def test_peaks_that_take_too_long_are_unknown_and_all_else_is_told(traffic: Traffic) -> None:
    await _limit(traffic, "tokens", "minute", 1000)
    owner = connect_engine(traffic.world.database.owner_url)
    try:
        async with owner.begin() as holding:
            await holding.execute(text("LOCK TABLE usage_event IN ACCESS EXCLUSIVE MODE"))
            found = await _standing(traffic, most_s=1)
    finally:
        await owner.dispose()
    assert found.peaks_known is False
    assert [(each.what, each.peak) for each in found.stands] == [("picos", None), ("tokens", None)]


def _refused(payer: Payer, allowance_id: AllowanceId, *, at: datetime) -> Refused:
    project_id, key_id, _ = payer.keys[0]
    return Refused(
        request_id=ids.request_id(),
        at_ms=round(at.timestamp() * 1000),
        tenant_id=TenantId(payer.tenant_id),
        project_id=ids.ProjectId(project_id),
        key_id=ids.KeyId(key_id),
        model_name="small",
        endpoint="chat.completions",
        reason="tokens_per_minute",
        message="no",
        status=429,
        limit="1",
        observed="2",
        retry_after_s=None,
        allowance_id=allowance_id,
    )
