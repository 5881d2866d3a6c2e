"""What a request needs of its limits, prepared once for a key and a model."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.catalog.limits import Limit
from app.catalog.snapshot import Key, Model, Tenant
from app.core import ids
from app.core.ids import AllowanceId, KeyId, ModelId, PriceVersionId, TenantId
from app.gateway.body import parse
from app.gateway.draft import Draft
from app.gateway.model import Endpoint, Principal
from app.gateway.terms import Terms, TermsBook, holds_of, limit_name, needs_of
from billing.metering.model import Usage
from billing.quota.model import Denied, Need, Rate
from billing.rating.model import Rates, bound
from billing.rating.schedule import Pinned

WALLET = AllowanceId("alw_wallet")
RATES = Rates(540, 180, 540, 2160)
KINDS = [
    ("tokens", "minute"),
    ("requests", "minute"),
    ("output_tokens", "day"),
    ("input_tokens", "month"),
    ("picos", "week"),
    ("concurrent", "running"),
]


def limit(what: str, window: str, amount: int = 1000) -> Limit:
    rate = Rate(amount, amount) if window == "minute" else None
    return Limit(
        AllowanceId(f"alw_{what}_{window}"), "project", "prj_1", None, what, window, amount, None, None, None,
        "plan:pln_1", rate,
    )  # fmt: skip


def terms(*limits: Limit) -> Terms:
    return TermsBook().of(
        limits, key_id=KeyId("key_1"), model_id=ModelId("mdl_1"), tenant_id=TenantId("ten_1"), wallet=WALLET
    )


def draft(given: Terms, **asked: object) -> Draft:
    body = {"model": "m", "messages": [{"role": "user", "content": "one two"}], **asked}
    key = Key(ids.key_id(), ids.tenant_id(), ids.project_id(), b"", frozenset(), None, None, None)
    return Draft(
        parse(msgspec.json.encode(body), Endpoint.CHAT),
        request_id=ids.request_id(),
        principal=Principal(key, Tenant(key.tenant_id, "active", "USD", None, WALLET)),
        model=Model(ModelId("mdl_1"), "m", 100_000, 4096, 256, 0, ids.deployment_id()),
        terms=given,
        pinned=Pinned(PriceVersionId("pbv_1"), RATES),
        task=None,
        at_ms=0,
    )


def test_each_limit_needs_what_it_counts_and_rates_are_not_in_the_journal() -> None:
    drawn = terms(*(limit(what, window) for what, window in KINDS)).drawn
    needs = needs_of(drawn, Usage(input=100, output=50), cost_picos=7)
    assert [(need.allowance_id, need.amount) for need in needs] == [
        (WALLET, 7),
        ("alw_tokens_minute", 150),
        ("alw_requests_minute", 1),
        ("alw_output_tokens_day", 50),
        ("alw_input_tokens_month", 100),
        ("alw_picos_week", 7),
        ("alw_concurrent_running", 1),
    ]
    assert [need.rate is not None for need in needs] == [False, True, True, False, False, False, False]
    assert [(held.allowance_id, held.amount, held.what) for held in holds_of(drawn, needs)] == [
        (WALLET, 7, "picos"),
        ("alw_output_tokens_day", 50, "output_tokens"),
        ("alw_input_tokens_month", 100, "input_tokens"),
        ("alw_picos_week", 7, "picos"),
        ("alw_concurrent_running", 1, "concurrent"),
    ]


def test_terms_are_kept_while_the_limits_are_the_same() -> None:
    book = TermsBook()
    named = {"key_id": KeyId("key_1"), "model_id": ModelId("mdl_1"), "tenant_id": TenantId("ten_1")}
    limits = (limit("requests", "minute"),)
    first = book.of(limits, **named, wallet=WALLET)
    assert book.of(limits, **named, wallet=WALLET) is first
    assert book.of((limit("requests", "minute", 7),), **named, wallet=WALLET) is not first
    assert book.of(limits, **named, wallet=AllowanceId("alw_new")).drawn[0].allowance_id == "alw_new"


def test_of_several_ceilings_the_lowest_counts() -> None:
    found = terms(limit("max_output", "request", 50), limit("max_output", "request", 20))
    assert found.max_output is not None
    assert found.max_output.amount == 20
    assert len(found.drawn) == 1, "a ceiling is read, nothing is taken of it"


def test_limits_have_the_names_that_people_use() -> None:
    names = {limit_name(what, window, scope_kind="key") for what, window in KINDS}
    assert names == {
        "tokens_per_minute",
        "requests_per_minute",
        "output_tokens_per_day",
        "input_tokens_per_month",
        "budget_per_week",
        "concurrent_requests",
    }
    assert limit_name("picos", "balance", scope_kind="task") == "task_budget"
    assert limit_name("picos", "balance", scope_kind="tenant") == "balance"


@given(
    available=st.integers(min_value=0, max_value=3_000_000),
    kind=st.sampled_from([("tokens", "minute"), ("output_tokens", "day"), ("picos", "month")]),
    choices=st.integers(min_value=1, max_value=4),
    asked=st.integers(min_value=2, max_value=4096),
)
def test_a_clamp_is_the_most_output_that_fits(
    available: int, kind: tuple[str, str], choices: int, asked: int
) -> None:
    given = terms(limit(*kind))
    wish = draft(given, max_tokens=asked, n=choices)
    lacking = given.drawn[1].allowance_id

    def needed() -> Need:
        return next(need for need in wish.needs() if need.allowance_id == lacking)

    if needed().amount <= available:
        return
    denied = Denied(lacking, limit=10**9, available=available, retry_after_s=None)
    if wish.clamp(denied, lambda _: None):
        assert 1 <= wish.max_tokens < asked
        assert needed().amount <= available
        assert wish.clamped_by == limit_name(*kind, scope_kind="project")
        wish.max_tokens += 1
        assert needed().amount > available
    else:
        wish.max_tokens = 1
        assert needed().amount > available


def test_a_limit_that_output_does_not_change_is_not_clamped() -> None:
    given = terms(limit("concurrent", "running"), limit("tokens", "minute"))
    wish = draft(given, max_tokens=100)
    denied = Denied(given.drawn[1].allowance_id, limit=1, available=0, retry_after_s=1.0)
    assert not wish.clamp(denied, lambda _: None)
    assert (wish.max_tokens, wish.clamped_by) == (100, None)


def test_the_other_limits_are_clamped_to_as_far_as_they_are_known() -> None:
    given = terms(limit("tokens", "minute"), limit("output_tokens", "day"))
    wish = draft(given, max_tokens=100)
    tokens, output = given.drawn[1].allowance_id, given.drawn[2].allowance_id
    denied = Denied(tokens, limit=1000, available=wish.input_bound + 60, retry_after_s=None)
    assert wish.clamp(denied, lambda allowance_id: (1000, 40) if allowance_id == output else None)
    assert (wish.max_tokens, wish.clamped_by) == (40, "output_tokens_per_day")


def test_it_is_worth_counting_only_what_might_fit() -> None:
    given = terms(limit("tokens", "minute"), limit("output_tokens", "day"))
    wish = draft(given, max_tokens=100)
    tokens, output = given.drawn[1].allowance_id, given.drawn[2].allowance_id

    def lacks(allowance_id: AllowanceId, available: int) -> Denied:
        return Denied(allowance_id, limit=1000, available=available, retry_after_s=None)

    assert wish.might_fit(lacks(tokens, 101), clamps=False)
    assert not wish.might_fit(lacks(tokens, 100), clamps=False)
    assert wish.might_fit(lacks(tokens, 2), clamps=True)
    assert not wish.might_fit(lacks(output, 99), clamps=True)
    assert wish.take_count(7)
    assert not wish.might_fit(lacks(tokens, 101), clamps=False), "it was counted"
    cost = bound(input_tokens=7, output_tokens=100, rates=RATES)
    assert wish.needs()[0].amount == cost
