"""A few calls to the control API, for the seeding of the demo."""

from __future__ import annotations

from typing import Any

import httpx

from app.core.errors import DependencyError

Record = dict[str, Any]


class ControlClient:
    """Calls that raise DependencyError with the API's own words when they are refused."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str, **query: str) -> Record:
        return await self._call("GET", path, query=query)

    async def post(
        self, path: str, body: Record | None = None, *, idempotency_key: str | None = None
    ) -> Record:
        return await self._call("POST", path, body=body or {}, idempotency_key=idempotency_key)

    async def put(self, path: str, body: Record) -> Record:
        return await self._call("PUT", path, body=body)

    async def delete(self, path: str) -> Record:
        return await self._call("DELETE", path)

    async def rows(self, path: str) -> list[Record]:
        """Every row of a list."""
        rows: list[Record] = []
        query = {"limit": "200"}
        while True:
            page = await self.get(path, **query)
            rows += page["data"]
            if not page["has_more"]:
                return rows
            query["after"] = page["next"]

    async def ensure(self, path: str, wanted: Record, *, match: str = "name") -> Record:
        """The row of a list whose field `match` is as wanted, made if there is none."""
        for row in await self.rows(path):
            if row[match] == wanted[match]:
                return row
        return await self.post(path, wanted)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Record | None = None,
        idempotency_key: str | None = None,
    ) -> Record:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        try:
            answer = await self._http.request(method, path, params=query or {}, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise DependencyError(f"{method} {path} failed: {error!r}") from error
        if answer.is_error:
            raise DependencyError(
                f"{method} {path} was refused with {answer.status_code}: {answer.text[:300]}"
            )
        return dict(answer.json()) if answer.content else {}
