"""`/alert-endpoints` and `/alert-deliveries`: where alerts go, and how each got there."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from fastapi import Depends, Query
from pydantic import Field

from app.control.call import Call, Reads, Writes
from app.control.reach import tenant_within
from app.control.schemas import In, Name, Out, Page, PagingQuery, Patch
from app.control.views.alerts import OwnTenant, tenant_of
from app.control.views.routes import router
from app.core.ids import TenantId
from app.core.settings import settings
from app.identity.errors import invalid
from app.identity.model import Scope
from billing.alerts import endpoints, outbox
from billing.alerts.addresses import BadAddress, parse_target, resolve
from billing.alerts.model import Delivery, Endpoint

api = router("alerts")
_Id = Annotated[str | None, Query(max_length=200)]
_Reader = Annotated[Call, Depends(Reads(Scope.ALERTS_READ))]
_Writer = Annotated[Call, Depends(Writes(Scope.ALERTS_WRITE))]
_Url = Annotated[str, Field(min_length=9, max_length=2000, examples=["https://hooks.example.com/steelyard"])]
_Mailbox = Annotated[
    str,
    Field(
        min_length=3,
        max_length=254,
        pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$",
        examples=["finance@example.com"],
    ),
]


class EndpointIn(In):
    tenant_id: OwnTenant = None
    name: Name | None = Field(None, description="Null: its address.")
    url: _Url | None = Field(None, description="Of a webhook.")
    email: _Mailbox | None = Field(None, description="Instead of a URL.")


class EndpointPatch(Patch):
    name: Name | None = None
    status: Literal["active", "disabled"] | None = Field(
        None, description="What waits for a disabled endpoint is dead; it can be retried later."
    )


class EndpointOut(Out):
    """Where alerts go. A webhook's secret is shown when it is made, and never again."""

    id: str
    tenant_id: str
    kind: Literal["webhook", "email"]
    name: str
    address: str = Field(description="A URL or a mailbox.")
    status: Literal["active", "disabled", "removed"]
    disabled_because: str | None = Field(description="What let us disable it; null: someone did, or nobody.")
    created_by: str
    created_at: datetime


class NewEndpoint(EndpointOut):
    """An endpoint with its secret: the only time that it is shown."""

    secret: str | None = Field(
        examples=["whsec_…"], description="Signs a webhook's messages; null: a mailbox."
    )


class DeliveryOut(Out):
    """The way of one alert to one endpoint."""

    id: str = Field(description="The `webhook-id` of its message, the same at each attempt.")
    tenant_id: str
    endpoint_id: str
    alert_id: str | None = Field(description="Null: a test.")
    status: Literal["pending", "delivered", "dead"]
    attempts: int
    next_at: datetime | None = Field(description="When it is tried next; null: no more.")
    last_status: int | None = Field(description="What the receiver or the mail server answered last.")
    last_error: str | None
    created_at: datetime
    ended_at: datetime | None


@api.post("/alert-endpoints", status_code=201, summary="Add a webhook or a mailbox for alerts")
async def create_endpoint(body: EndpointIn, call: _Writer) -> NewEndpoint:
    """Every alert of the tenant goes there. Hosts at private addresses are refused."""
    tenant_id = await tenant_of(call, body.tenant_id)
    address = body.url or body.email
    if address is None or (body.url is not None and body.email is not None):
        invalid("An endpoint has either a url or an email.", param="url")
    if body.url is not None:
        await _check(body.url)
    made, secret = await endpoints.create_endpoint(
        call.connection,
        tenant_id,
        kind="email" if body.url is None else "webhook",
        name=body.name or address[:200],
        address=address,
        created_by=call.actor.id,
        now=call.now,
    )
    shown = _endpoint(made)
    call.trail.note(
        "alert_endpoint.create", made.id, tenant_id=tenant_id, after=shown.model_dump(mode="json")
    )
    if secret is not None:
        call.hide_answer(id=made.id)
    return NewEndpoint(**shown.model_dump(), secret=secret)


@api.get("/alert-endpoints", summary="List alert endpoints")
async def list_endpoints(paging: PagingQuery, call: _Reader, *, tenant_id: _Id = None) -> Page[EndpointOut]:
    tenant = tenant_within(call, tenant_id)
    rows = await endpoints.list_endpoints(
        call.connection,
        tenant_id=None if tenant is None else TenantId(tenant),
        after=paging.after,
        limit=paging.fetch,
    )
    return paging.page(rows, _endpoint)


@api.get("/alert-endpoints/{endpoint_id}", summary="Show an alert endpoint")
async def show_endpoint(endpoint_id: str, call: _Reader) -> EndpointOut:
    return _endpoint(await endpoints.get_endpoint(call.connection, endpoint_id, within=call.within))


@api.patch("/alert-endpoints/{endpoint_id}", summary="Rename, disable or enable an alert endpoint")
async def change_endpoint(endpoint_id: str, body: EndpointPatch, call: _Writer) -> EndpointOut:
    """Another address is another endpoint: what signs for one does not sign for the other."""
    before = await endpoints.get_endpoint(call.connection, endpoint_id, within=call.within)
    changes = body.changes()
    if not changes:
        return _endpoint(before)
    after = await endpoints.change_endpoint(call.connection, before.id, changes=changes, now=call.now)
    return _noted(call, "alert_endpoint.change", before=before, after=after)


@api.delete("/alert-endpoints/{endpoint_id}", summary="Remove an alert endpoint and its secret")
async def remove_endpoint(endpoint_id: str, call: _Writer) -> EndpointOut:
    before = await endpoints.get_endpoint(call.connection, endpoint_id, within=call.within)
    after = await endpoints.remove_endpoint(call.connection, before.id, now=call.now)
    return _noted(call, "alert_endpoint.remove", before=before, after=after)


@api.post("/alert-endpoints/{endpoint_id}/test", status_code=201, summary="Send a test to an alert endpoint")
async def send_test(endpoint_id: str, call: _Writer) -> DeliveryOut:
    """It is sent within seconds; look at the delivery to see how it went. One test waits at a time."""
    endpoint = await endpoints.get_endpoint(call.connection, endpoint_id, within=call.within)
    delivery = await outbox.send_test(call.connection, endpoint, now=call.now)
    call.trail.note("alert_endpoint.test", endpoint.id, tenant_id=endpoint.tenant_id)
    return _delivery(delivery)


@api.get("/alert-deliveries", summary="List deliveries of alerts, newest first")
async def list_deliveries(
    paging: PagingQuery,
    call: _Reader,
    *,
    tenant_id: _Id = None,
    endpoint_id: _Id = None,
    alert_id: _Id = None,
    status: Literal["pending", "delivered", "dead"] | None = None,
) -> Page[DeliveryOut]:
    only = {
        "tenant_id": tenant_within(call, tenant_id),
        "endpoint_id": endpoint_id,
        "alert_id": alert_id,
        "status": status,
    }
    rows = await outbox.list_deliveries(call.connection, only=only, before=paging.after, limit=paging.fetch)
    return paging.page(rows, _delivery)


@api.get("/alert-deliveries/{delivery_id}", summary="Show a delivery of an alert")
async def show_delivery(delivery_id: str, call: _Reader) -> DeliveryOut:
    return _delivery(await outbox.get_delivery(call.connection, delivery_id, within=call.within))


@api.post("/alert-deliveries/{delivery_id}/retry", summary="Try a dead delivery again")
async def retry_delivery(delivery_id: str, call: _Writer) -> DeliveryOut:
    """As if it were new, under the same id."""
    delivery = await outbox.retry(call.connection, delivery_id, within=call.within, now=call.now)
    call.trail.note("alert_delivery.retry", delivery.id, tenant_id=delivery.tenant_id)
    return _delivery(delivery)


async def _check(url: str) -> None:
    try:
        await resolve(parse_target(url, private_hosts=settings().webhook_private_hosts))
    except BadAddress as error:
        invalid(f"No alerts go to this URL: {error}.", param="url")


def _noted(call: Call, action: str, *, before: Endpoint, after: Endpoint) -> EndpointOut:
    shown, was = _endpoint(after), _endpoint(before)
    call.trail.note(
        action,
        after.id,
        tenant_id=after.tenant_id,
        before=was.model_dump(mode="json"),
        after=shown.model_dump(mode="json"),
    )
    return shown


def _endpoint(endpoint: Endpoint) -> EndpointOut:
    return EndpointOut(**msgspec.structs.asdict(endpoint))


def _delivery(delivery: Delivery) -> DeliveryOut:
    facts = msgspec.structs.asdict(delivery)
    return DeliveryOut(**{**facts, "next_at": delivery.next_at if delivery.ended_at is None else None})
