"""Records are read back as they were written, whatever their amounts."""

from __future__ import annotations

import msgspec
import pytest

from app.core import ids
from billing.journal.model import Held, Record, Refused, Used, decode, encode
from billing.metering.model import Usage
from tests.billing.journal.shop import Catalogue, settled

SOMEONE = Catalogue(ids.tenant_id(), ids.allowance_id())
AMOUNTS = (0, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**38 - 1)


def refused() -> Refused:
    names = [ids.request_id(), ids.tenant_id(), ids.ProjectId("prj_one"), ids.KeyId("key_one")]
    request_id, tenant_id, project_id, key_id = names
    return Refused(
        request_id, 1, tenant_id, project_id, key_id, "1", "chat", "queue_full", "true", 429, "5", None, 1.5
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_amount_of_any_size_comes_back_exactly(amount: int) -> None:
    """Dear tokens of a small currency unit pass 64 bits: a million units per million, 20 million tokens."""
    admitted = msgspec.structs.replace(SOMEONE.admitted(), holds=(Held(SOMEONE.allowance_id, amount),))
    end = settled(
        admitted, Usage(input=amount), cost_picos=amount, used=(Used(SOMEONE.allowance_id, amount, amount),)
    )
    records: list[Record] = [admitted, end, refused()]
    assert [decode(encode(record)) for record in records] == records
