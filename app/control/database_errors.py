"""The database's errors as ours: which constraint spoke, and what that means to the caller."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from app.core.errors import Conflict, DependencyError, Rejected, RejectReason, SteelyardError

BROKEN = "Something broke on our side; the request id names it in the logs."
_UNIQUE = {
    "project_tenant_id_name_key": "The tenant has a project of this name.",
    "member_email_key": "There is a member with this e-mail.",
    "model_name_key": "There is a model of this name.",
    "deployment_model_id_key": "The model has a deployment.",
    "backend_address": "The deployment has a backend at this address.",
    "price_book_name_key": "There is a price book of this name.",
    "price_book_default": "The currency has a default price book.",
    "alert_rule_once": "The tenant has a rule for the same allowances; change that one.",
    "plan_name_key": "There is a plan of this name.",
    "task_project_id_name_key": "The project has a task of this name.",
    "wallet_tenant_id_key": "The tenant has a wallet.",
}
_UNREACHABLE = ("08", "28", "3D", "53", "57", "58")
_RETRY = ("40001", "40P01", "55P03")


def translate(error: DBAPIError) -> SteelyardError:
    """Our error for one of the database; its cause is kept for the log, its text isn't shown."""
    state = getattr(error.orig, "sqlstate", None) or ""
    ours = _meaning(state, _constraint(error))
    if error.connection_invalidated or not state:
        ours = DependencyError("The database can't be reached; try again.")
    ours.__cause__ = error
    return ours


def _meaning(state: str, constraint: str) -> SteelyardError:
    if state == "23505":
        return Conflict(_UNIQUE.get(constraint, "It exists already."), constraint=constraint)
    if state == "23503":
        return Conflict("It refers to something that doesn't exist.", constraint=constraint)
    if state == "23001":
        return Conflict("History stands: write a correcting row instead.")
    if state == "23P01":
        return Conflict("Two versions would hold at one time.", constraint=constraint)
    if state in ("23514", "23502") or state.startswith("22"):
        message = "A value is out of its range."
        return Rejected(RejectReason.PARAMETER_INVALID, message, status=400, constraint=constraint)
    if state == "57014":
        return DependencyError("The database took too long: ask for less, such as a shorter range.")
    if state in _RETRY:
        return DependencyError("The database was busy with a rival change; try again.")
    if state.startswith(_UNREACHABLE):
        return DependencyError("The database can't be reached; try again.")
    return SteelyardError(BROKEN)


def _constraint(error: DBAPIError) -> str:
    cause = getattr(error.orig, "__cause__", None)
    return str(getattr(cause, "constraint_name", None) or "")
