"""`steelyard plans …`: sets of limits, and who has which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from app.cli.api import Api, connect
from app.cli.errors import usage_error
from app.cli.limit_terms import NONE, TERM_HELP, instant, local, parse_limit, write_limit, zone_of
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    IdempotencyKey,
    Limit,
    TenantOption,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, idempotency_key, print_json, show_page, show_record, show_rows

verbs = noun(
    "plans",
    "Sets of limits, and perhaps prices, that tenants have from a day on.",
    "steelyard plans create Team --limit key:tokens/minute=40000 --limit tenant:concurrent=8",
    "steelyard plans assign Team --tenant ten_0193f0c2 --from 2027-01-01",
    "steelyard plans list",
)
PLANS = {"id": "id", "name": "name", "currency": "currency", "description": "description"}
LIMITS = {"level": "for each", "limit": "limit", "amount": "amount", "burst": "burst", "unit": "unit"}
CHANGES = {"level": "for each", "limit": "limit", "before": "before", "after": "after", "unit": "unit"}
HOLDERS = {"tenant_id": "tenant", "name": "name", "from": "from", "until": "until", "overrides": "overridden"}
ASSIGNMENTS = {"id": "id", "plan": "plan", "from": "from", "until": "until", "plan_id": "plan id"}
PlanArgument = Annotated[str, typer.Argument(help="Plan id (pln_…) or name.")]
Limits = Annotated[
    list[str] | None,
    typer.Option("--limit", help=f"tenant:, project: or key:, then {TERM_HELP} Repeat for more."),
]


@verb(
    verbs,
    "list",
    "steelyard plans list",
    "steelyard plans list --archived",
    "steelyard plans list --json",
)
def list_plans(
    *,
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones too.")] = False,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the plans."""
    with connect(data_dir) as api:
        page = api.get("/plans", archived=archived or None, limit=limit, after=after)
    show_page(page, PLANS, as_json=as_json, empty="no plans: steelyard plans create NAME --limit …")


@verb(
    verbs,
    "show",
    "steelyard plans show Team",
    "steelyard plans show pln_0193f0c2",
    "steelyard plans show Team --json",
)
def show(plan: PlanArgument, *, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show a plan with its limits."""
    with connect(data_dir) as api:
        _show(api.get(f"/plans/{_plan_id(api, plan)}"), as_json=as_json)


@verb(
    verbs,
    "create",
    "steelyard plans create Team --limit key:tokens/minute=40000 --limit tenant:concurrent=8",
    "steelyard plans create Team --limit project:money/month=25 --currency EUR",
    "steelyard plans create Team --limit key:requests/minute=60,burst=10 --price-book pbk_0193f0c2 --json",
)
def create(
    name: Annotated[str, typer.Argument(help="Name, one of its kind.")],
    *,
    limits: Limits = None,
    currency: Annotated[str | None, typer.Option(help="ISO 4217 code of its amounts of money.")] = None,
    price_book: Annotated[str | None, typer.Option(help="Price book id; for its tenants.")] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create a plan; tenants have it once it is assigned."""
    terms = [_limit(each) for each in limits or []]
    body: dict[str, Any] = {"name": name, "description": description, "limits": terms}
    body |= {"currency": currency, "price_book_id": price_book}
    with connect(data_dir) as api:
        _show(api.post("/plans", body), as_json=as_json)


@verb(
    verbs,
    "edit",
    "steelyard plans edit Team --limit key:tokens/minute=80000 --preview",
    "steelyard plans edit Team --limit key:tokens/minute=80000 --drop tenant:concurrent --yes",
    "steelyard plans edit Team --name Crew --description 'up to ten people'",
)
def edit(
    plan: PlanArgument,
    *,
    limits: Limits = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A limit to end, without its amount: key:tokens/minute.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    description: Annotated[str | None, typer.Option(help="Another description.")] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Say what it would change, and for whom.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Change limits of a plan for all who have it, within a second, or its name; says first what changes."""
    terms = {_subject(each): each for each in map(_limit, limits or [])}
    ended = {_subject(parse_limit(each, with_level=True, with_amount=False)) for each in drop or []}
    named = {key: value for key, value in (("name", name), ("description", description)) if value is not None}
    if not (terms or ended or named):
        raise usage_error("nothing to change", remedy="--limit, --drop, --name or --description")
    with connect(data_dir) as api:
        plan_id = _plan_id(api, plan)
        found: Mapping[str, Any] = api.get(f"/plans/{plan_id}")
        if terms or ended:
            wanted = _merged(found["limits"], terms, ended=ended)
            found = _replace(api, plan_id, limits=wanted, preview=preview, yes=yes, as_json=as_json)
        if named and not preview:
            found = api.patch(f"/plans/{plan_id}", named)
    if not preview:
        _show(found, as_json=as_json)


@verb(
    verbs,
    "archive",
    "steelyard plans archive Team",
    "steelyard plans archive pln_0193f0c2 --yes",
    "steelyard plans archive Team --yes --json",
)
def archive(
    plan: PlanArgument, *, yes: Yes = False, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Assign a plan to nobody any more; tenants who have it keep it."""
    confirm(f"Archive {plan}?", yes=yes)
    with connect(data_dir) as api:
        _show(api.post(f"/plans/{_plan_id(api, plan)}/archive"), as_json=as_json)


@verb(
    verbs,
    "assign",
    "steelyard plans assign Team",
    "steelyard plans assign Team --tenant ten_0193f0c2 --from 2027-01-01 --yes",
    "steelyard plans assign none --tenant ten_0193f0c2 --yes",
)
def assign(
    plan: Annotated[str, typer.Argument(help="Plan id (pln_…) or name; none: no plan.")],
    *,
    tenant: TenantOption = None,
    first: Annotated[
        str | None, typer.Option("--from", help="Day or instant, in the tenant's zone; else now.")
    ] = None,
    yes: Yes = False,
    key_of_write: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Give a tenant a plan, now or from a day on; the one that it has by then ends there."""
    with connect(data_dir) as api:
        owner = _tenant(api, tenant)
        plan_id = None if plan == NONE else _plan_id(api, plan)
        body = {"plan_id": plan_id, "effective_from": instant(first, zone_of(owner["timezone"]))}
        confirm(f"Give {owner['name']} the plan {plan}?", yes=yes)
        name = idempotency_key(key_of_write)
        made = api.post(f"/tenants/{owner['id']}/plan-assignments", body, idempotency_key=name)
    show_record(made["assignment"] or {"plan": None, "tenant_id": owner["id"]}, as_json=as_json)


@verb(
    verbs,
    "assignments",
    "steelyard plans assignments",
    "steelyard plans assignments --tenant ten_0193f0c2",
    "steelyard plans assignments --json",
)
def list_assignments(
    *,
    tenant: TenantOption = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List which plans a tenant had, has and will have."""
    with connect(data_dir) as api:
        owner = _tenant(api, tenant)
        page = api.get(f"/tenants/{owner['id']}/plan-assignments", limit=limit, after=after)
    if not as_json:
        page["data"] = list(_spans(page["data"], zone=owner["timezone"]))
    show_page(page, ASSIGNMENTS, as_json=as_json, empty="no plan: steelyard plans assign PLAN")


@verb(
    verbs,
    "withdraw",
    "steelyard plans withdraw pas_0193f0c2",
    "steelyard plans withdraw pas_0193f0c2 --yes",
    "steelyard plans withdraw pas_0193f0c2 --yes --json",
)
def withdraw(
    assignment: Annotated[str, typer.Argument(help="Assignment id: pas_…, as `assignments` shows it.")],
    *,
    yes: Yes = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Withdraw a plan that is scheduled; what it would have ended goes on."""
    confirm(f"Withdraw {assignment}?", yes=yes)
    with connect(data_dir) as api:
        show_record(api.post(f"/plan-assignments/{assignment}/withdraw"), as_json=as_json)


def _limit(term: str) -> dict[str, Any]:
    terms = parse_limit(term, with_level=True)
    if terms["amount"] is None:
        raise usage_error("a plan has no limit by having none", remedy="--drop, or leave it out")
    return terms


def _subject(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["level"], row["what"], row["window"], row.get("model")


def _merged(
    present: Iterable[Mapping[str, Any]],
    terms: dict[tuple[Any, ...], dict[str, Any]],
    *,
    ended: set[tuple[Any, ...]],
) -> list[dict[str, Any]]:
    """The limits that there are, those that change, those that are new."""
    fields = ("level", "what", "window", "model", "amount", "burst")
    stay = {_subject(row): {name: row[name] for name in fields} for row in present}
    unknown = ended - stay.keys()
    if unknown:
        level, what, window, _ = sorted(unknown, key=str)[0]
        raise usage_error(
            f"the plan has no limit {level}:{what}/{window}", remedy="steelyard plans show PLAN"
        )
    return [row for subject, row in (stay | terms).items() if subject not in ended]


def _replace(
    api: Api, plan_id: str, *, limits: list[dict[str, Any]], preview: bool, yes: bool, as_json: bool
) -> Mapping[str, Any]:
    """The plan with these limits, after what changes was shown and said yes to."""
    body = {"limits": limits}
    effect = api.put(f"/plans/{plan_id}/limits", body, query={"preview": True})
    if preview and as_json:
        print_json(effect)
    if not as_json:
        _show_effect(effect)
    if preview:
        return effect["plan"]  # type: ignore[no-any-return]
    confirm(f"Change {effect['plan']['name']} for {effect['plan']['tenants']} tenants?", yes=yes)
    return api.put(f"/plans/{plan_id}/limits", body)["plan"]  # type: ignore[no-any-return]


def _show_effect(effect: Mapping[str, Any]) -> None:
    changes = [
        {
            **row,
            "limit": write_limit(row),
            **{name: _amount(row[name]) for name in ("before", "after")},
            "unit": (row["after"] or row["before"])["unit"],
        }
        for row in effect["changes"]
    ]
    show_rows(changes, CHANGES, as_json=False, empty="nothing changes")
    holders = list(_spans(effect["tenants"], zone="UTC"))
    show_rows(holders, HOLDERS, as_json=False, empty="no tenant has it")


def _amount(limit: Mapping[str, Any] | None) -> str | None:
    if limit is None:
        return None
    return f"{limit['amount']}, burst {limit['burst']}" if limit.get("burst") else str(limit["amount"])


def _spans(rows: Iterable[Mapping[str, Any]], *, zone: str) -> Iterable[dict[str, Any]]:
    """Rows with the days of their span in a zone."""
    place = zone_of(zone)
    return (
        {**row, "from": local(row["effective_from"], place), "until": local(row["effective_to"], place)}
        for row in rows
    )


def _show(plan: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    show_record({name: value for name, value in plan.items() if name != "limits"}, as_json=False)
    rows = [{**row, "limit": write_limit(row)} for row in plan["limits"]]
    show_rows(rows, LIMITS, as_json=False, empty="it has no limits")


def _plan_id(api: Api, named: str) -> str:
    """The id of a plan by id or name."""
    if named.startswith("pln_"):
        return named
    for row in api.rows("/plans", archived=True):
        if row["name"] == named:
            return str(row["id"])
    raise usage_error(f"there is no plan {named}", remedy="steelyard plans list")


def _tenant(api: Api, given: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = api.get(f"/tenants/{given or api.only('/tenants', noun='tenant')}")
    return found
