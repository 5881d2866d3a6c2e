"""The description of the API is whole: every route says what it needs, takes, gives and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from app.control.application import create_app
from app.control.edge import EdgeRoute
from app.core.database import connect_engine
from app.core.errors import RejectReason, SteelyardError
from app.identity.model import SCOPES_OF_ROLE, Role, Scope
from app.insights.remedies import REMEDIES

_MONEY = {
    ("patch", "/api/v1/wallets/{wallet_id}"),
    ("post", "/api/v1/wallets/{wallet_id}/grants"),
    ("post", "/api/v1/requests/{request_id}/corrections"),
    ("post", "/api/v1/tenants/{tenant_id}/plan-assignments"),
    ("post", "/api/v1/tenants/{tenant_id}/limit-overrides"),
}


def _description() -> dict[str, Any]:
    app = create_app(connect_engine("postgresql://nobody@127.0.0.1:1/nothing")).app
    assert isinstance(app, FastAPI)
    return app.openapi()


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in _description()["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def _codes(root: type[SteelyardError]) -> set[str]:
    return {root.code}.union(*(_codes(kind) for kind in root.__subclasses__()))


def test_every_route_has_a_summary_a_tag_a_scope_and_typed_answers() -> None:
    for method, path, operation in _operations():
        where = f"{method} {path}"
        assert operation["summary"], where
        assert len(operation["tags"]) == 1, where
        assert operation["x-required-scope"] in set(Scope), where
        success = next(answer for status, answer in operation["responses"].items() if status < "300")
        content = success["content"]
        assert (content.get("application/json") or content["application/x-ndjson"])["schema"], where
        assert operation["security"], where


def test_every_route_documents_the_one_shape_of_errors() -> None:
    shape = {"$ref": "#/components/schemas/ErrorBody"}
    for method, path, operation in _operations():
        for status in ("400", "401", "403", "404", "409", "413", "503", "default"):
            answer = operation["responses"][status]
            assert answer["content"]["application/json"]["schema"] == shape, f"{method} {path} {status}"
        assert "422" not in operation["responses"], f"{method} {path}"


def test_every_code_that_the_description_names_is_known() -> None:
    known = set(RejectReason) | _codes(SteelyardError)
    named: set[str] = set()
    for _, _, operation in _operations():
        for answer in operation["responses"].values():
            named |= {
                word.strip("`,:")
                for word in answer["description"].split()
                if word.startswith("`") and "_" in word
            }
    assert named
    assert named <= known


def test_every_write_takes_an_idempotency_key_and_money_demands_one() -> None:
    for method, path, operation in _operations():
        keys = [each for each in operation.get("parameters", []) if each["name"] == "idempotency-key"]
        assert len(keys) == (0 if method == "get" else 1), f"{method} {path}"
        if keys:
            assert keys[0]["required"] is ((method, path) in _MONEY), f"{method} {path}"


def test_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in _operations()]
    assert len(names) == len(set(names))


def test_a_route_that_does_not_say_what_it_needs_does_not_start() -> None:
    router = APIRouter(route_class=EdgeRoute)

    async def view() -> None: ...

    with pytest.raises(TypeError, match="exactly one need"):
        router.add_api_route("/open", view)


def test_every_scope_is_asked_for_and_every_role_has_some() -> None:
    asked = {operation["x-required-scope"] for _, _, operation in _operations()}
    assert asked == set(Scope)
    assert all(SCOPES_OF_ROLE[role] for role in Role)


def test_every_reason_has_a_remedy() -> None:
    assert set(REMEDIES) == set(RejectReason)
