"""A row as PostgreSQL reads it back: amounts of any length, and holds whatever their names hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from app.core.ids import AllowanceId
from billing.journal import encoding
from billing.journal.model import Used
from tests.billing.journal.shop import Shop

_AMOUNTS = sorted(
    {sign * (10**power + step) for power in range(37) for step in (-1, 0, 1) for sign in (1, -1)}
)


async def test_an_amount_of_any_length_is_stored_as_it_is(shop: Shop) -> None:
    async def rows() -> AsyncIterator[bytes]:
        fields = b"".join(b"\0\1" + encoding._numeric(amount) for amount in _AMOUNTS)
        yield encoding.HEAD + fields + encoding.TAIL

    async with shop.engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute("CREATE TEMP TABLE amounts (amount numeric(38, 0))")
        await driver.copy_to_table("amounts", source=rows(), format="binary")
        found = await driver.fetch("SELECT amount::text AS amount FROM amounts ORDER BY amounts.amount")
    assert [row["amount"] for row in found] == [str(amount) for amount in _AMOUNTS]


@pytest.mark.parametrize("name", ["alw_1", 'alw"\\', "alw ü\n", ""])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_holds_are_json_whatever_their_names_hold(name: str, count: int) -> None:
    used = (Used(AllowanceId(name), 10**30, 7),) * count
    data = encoding._holds(used)
    wanted = [{"allowance_id": name, "what": "picos", "held": str(10**30), "used": "7"}] * count
    assert (int.from_bytes(data[:4]), data[4]) == (len(data) - 4, 1)
    assert msgspec.json.decode(data[5:]) == wanted
