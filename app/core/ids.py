"""Prefixed, sortable, typed ids: `req_` + the 32 hex digits of a UUIDv7."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NewType

from uuid_utils import uuid7

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
MemberId = NewType("MemberId", str)
ModelId = NewType("ModelId", str)
DeploymentId = NewType("DeploymentId", str)
BackendId = NewType("BackendId", str)
RequestId = NewType("RequestId", str)
AllowanceId = NewType("AllowanceId", str)
IncarnationId = NewType("IncarnationId", str)
PriceBookId = NewType("PriceBookId", str)
PriceVersionId = NewType("PriceVersionId", str)
WalletId = NewType("WalletId", str)
GrantId = NewType("GrantId", str)
TransactionId = NewType("TransactionId", str)
CorrectionId = NewType("CorrectionId", str)
AccessTokenId = NewType("AccessTokenId", str)
PlanId = NewType("PlanId", str)
PlanAssignmentId = NewType("PlanAssignmentId", str)
OverrideId = NewType("OverrideId", str)
TaskId = NewType("TaskId", str)
AlertId = NewType("AlertId", str)
AlertEndpointId = NewType("AlertEndpointId", str)
AlertRuleId = NewType("AlertRuleId", str)
AlertDeliveryId = NewType("AlertDeliveryId", str)

_HEX_DIGITS = frozenset("0123456789abcdef")


def _random_hex() -> str:
    return str(uuid7().hex)


_sources: list[Callable[[], str]] = [_random_hex]


@contextmanager
def drawn_from(source: Callable[[], str]) -> Iterator[None]:
    """Within the block ids have the 32 hex digits that `source` gives: so a simulation can be repeated."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.pop()


def _new(prefix: str) -> str:
    return prefix + _sources[-1]()


def tenant_id() -> TenantId:
    return TenantId(_new("ten_"))


def project_id() -> ProjectId:
    return ProjectId(_new("prj_"))


def key_id() -> KeyId:
    return KeyId(_new("key_"))


def member_id() -> MemberId:
    return MemberId(_new("mem_"))


def model_id() -> ModelId:
    return ModelId(_new("mdl_"))


def deployment_id() -> DeploymentId:
    return DeploymentId(_new("dep_"))


def backend_id() -> BackendId:
    return BackendId(_new("bck_"))


def request_id() -> RequestId:
    return RequestId(_new("req_"))


def allowance_id() -> AllowanceId:
    return AllowanceId(_new("alw_"))


def incarnation_id() -> IncarnationId:
    return IncarnationId(_new("inc_"))


def price_book_id() -> PriceBookId:
    return PriceBookId(_new("pbk_"))


def price_version_id() -> PriceVersionId:
    return PriceVersionId(_new("pbv_"))


def wallet_id() -> WalletId:
    return WalletId(_new("wal_"))


def grant_id() -> GrantId:
    return GrantId(_new("grt_"))


def transaction_id() -> TransactionId:
    return TransactionId(_new("txn_"))


def correction_id() -> CorrectionId:
    return CorrectionId(_new("cor_"))


def access_token_id() -> AccessTokenId:
    return AccessTokenId(_new("tok_"))


def task_id() -> TaskId:
    return TaskId(_new("tsk_"))


def plan_id() -> PlanId:
    return PlanId(_new("pln_"))


def plan_assignment_id() -> PlanAssignmentId:
    return PlanAssignmentId(_new("pas_"))


def override_id() -> OverrideId:
    return OverrideId(_new("ovr_"))


def alert_id() -> AlertId:
    return AlertId(_new("alt_"))


def alert_endpoint_id() -> AlertEndpointId:
    return AlertEndpointId(_new("aep_"))


def alert_rule_id() -> AlertRuleId:
    return AlertRuleId(_new("alr_"))


def alert_delivery_id() -> AlertDeliveryId:
    return AlertDeliveryId(_new("ald_"))


def is_id(text: str, prefix: str) -> bool:
    """True if `text` has the form of an id with this prefix (`"req_"`); says nothing of existence."""
    digits = text[len(prefix) :]
    return text.startswith(prefix) and len(digits) == 32 and _HEX_DIGITS.issuperset(digits)


def created_ms(any_id: str) -> int:
    """The Unix time in milliseconds at which an id was made (RFC 9562 §5.7: its first 48 bits)."""
    return int(any_id[any_id.index("_") + 1 :][:12], 16)
