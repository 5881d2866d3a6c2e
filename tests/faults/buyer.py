"""A tenant of its own beside the demo's, with a wallet that can be filled to the pico."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import httpx

from app.core.money import format_picos, parse_picos
from tests.faults.books import connected
from tests.faults.client import Kind, Load, Received
from tests.faults.stack import Stack, until


@dataclass
class Buyer:
    """A tenant with a key and a wallet of its own, empty at first."""

    stack: Stack
    tenant_id: str
    wallet_id: str
    key: str

    def load(self) -> Load:
        """Whatever is asked for one request at a time."""
        return Load(self.stack.addresses.gateway_url, key=self.key)

    async def needs(self, max_tokens: int, kind: Kind) -> int:
        """The picos held for such a request, as the refusal of one says."""

        async def look() -> Received | None:
            [one] = await self.load().burst(1, max_tokens=max_tokens, kind=kind)
            return one if one.status == 429 else None

        refused = await until(look)
        assert refused.error is not None
        return parse_picos(refused.error["needed"])

    async def gets(self, picos: int, *, reference: str) -> None:
        """Fill the wallet, once for a reference; waits for a control API that is away."""
        gift = {"amount": format_picos(picos), "kind": "purchased", "reason": "test", "reference": reference}
        headers = {"idempotency-key": f"{self.wallet_id} {reference}"}

        async def look() -> bool:
            try:
                async with self.stack.control() as control:
                    path = f"/wallets/{self.wallet_id}/grants"
                    answer = await control.post(path, json=gift, headers=headers)
            except httpx.HTTPError:
                return False
            assert answer.status_code in (201, 503), answer.text
            return answer.status_code == 201

        await until(look)

    async def available(self) -> int:
        """What is neither spent nor lent, in one snapshot."""
        async with connected(self.stack) as database:
            query = "SELECT quota_available(allowance_id) FROM wallet WHERE id = $1"
            return int(await database.fetchval(query, self.wallet_id))

    async def posted(self) -> int:
        """What is left when all that was used is spent."""
        async with connected(self.stack) as database:
            query = """SELECT a.limit_amount - a.spent
                FROM wallet w JOIN allowance a ON a.id = w.allowance_id WHERE w.id = $1"""
            return int(await database.fetchval(query, self.wallet_id))


async def new_buyer(stack: Stack) -> Buyer:
    """Make one through the control API."""
    async with stack.control() as control:

        async def made(path: str, **body: str) -> dict[str, str]:
            answer = await control.post(path, json=body)
            assert answer.status_code == 201, answer.text
            return dict(answer.json())

        name = f"buyer {uuid.uuid4().hex}"
        tenant = await made("/tenants", name=name, currency="USD", timezone="UTC")
        project = await made(f"/tenants/{tenant['id']}/projects", name="test")
        key = await made(f"/projects/{project['id']}/keys", name="test")
        wallet = (await control.get(f"/tenants/{tenant['id']}/wallet")).json()
    return Buyer(stack, tenant["id"], wallet["id"], key["key"])
