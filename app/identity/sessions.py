"""Console sessions: a secret in a cookie, its digest in the database, an end in time."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.errors import Rejected, RejectReason
from app.identity.audit import Trail, append
from app.identity.credentials import digest_of, new_session
from app.identity.members import to_member
from app.identity.model import Member
from app.identity.passwords import matches
from app.identity.tables import member, session

SESSION_COOKIE = "steelyard_session"
_PUBLIC = [column for column in member.c if column.name != "password_hash"]


class LoginAttempts:
    """Counts failed logins by e-mail and by address in this process; too many close the door for a while."""

    def __init__(self, *, most: int = 10, window_s: float = 300.0, remembered: int = 10_000) -> None:
        self._most = most
        self._window_s = window_s
        self._remembered = remembered
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, *names: str, now: datetime) -> None:
        """Nothing if none of the names failed too often. Raises Rejected (429) else."""
        for name in names:
            recent = self._recent(name, now)
            if len(recent) >= self._most:
                wait_s = max(1.0, recent[0] + self._window_s - now.timestamp())
                raise Rejected(
                    RejectReason.REQUESTS_PER_MINUTE,
                    "Too many failed logins; try again later.",
                    status=429,
                    limit=f"{self._most} failed logins in {self._window_s:.0f} s",
                    observed=str(len(recent)),
                    retry_after_s=wait_s,
                )

    def failed(self, *names: str, now: datetime) -> None:
        for name in names:
            self._failures[name] = [*self._recent(name, now), now.timestamp()]
            self._failures.move_to_end(name)
        while len(self._failures) > self._remembered:
            self._failures.popitem(last=False)

    def succeeded(self, name: str, *others: str) -> None:
        """Forget the failures of a name, and the last one of each other."""
        self._failures.pop(name, None)
        for other in others:
            self._failures[other] = self._failures.get(other, [])[:-1]

    def _recent(self, name: str, now: datetime) -> list[float]:
        return [at for at in self._failures.get(name, []) if at > now.timestamp() - self._window_s]


async def login(
    connection: AsyncConnection,
    *,
    email: str,
    password: str,
    attempts: LoginAttempts,
    now: datetime,
    lifetime: timedelta,
    from_address: str | None = None,
) -> str:
    """The secret of a new session, for the cookie.

    Raises Rejected: 429 after too many failures of this e-mail or address, else 401 with one
    message for an unknown e-mail, a wrong password and a disabled member.
    """
    email = email.strip().lower()
    names = [f"email:{email}"] + ([f"address:{from_address}"] if from_address else [])
    row = (await connection.execute(select(member).where(member.c.email == email))).one_or_none()
    attempts.check(*names, now=now)
    attempts.failed(*names, now=now)  # until it succeeds: many guesses at a time are many failures
    known = await matches(password, row.password_hash if row else None)
    if row is None or not known or row.status != "active":
        raise Rejected(RejectReason.KEY_UNKNOWN, "E-mail or password is wrong.", status=401)
    attempts.succeeded(*names)
    credential = new_session()
    await connection.execute(delete(session).where(session.c.expires_at <= now))
    values = {"digest": credential.digest, "member_id": row.id, "expires_at": now + lifetime}
    await connection.execute(insert(session).values(values))
    trail = Trail(row.id, from_address)
    trail.note("session.create", row.id, tenant_id=row.tenant_id)
    await append(connection, trail, now=now)
    return credential.secret


async def find_session(connection: AsyncConnection, secret: str, *, now: datetime) -> Member | None:
    """The active member whose session this is, if it has not ended."""
    query = (
        select(*_PUBLIC)
        .join(session, session.c.member_id == member.c.id)
        .where(session.c.digest == digest_of(secret), session.c.expires_at > now, member.c.status == "active")
    )
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else to_member(row)


async def logout(connection: AsyncConnection, secret: str) -> None:
    """End a session; nothing if there is none."""
    await connection.execute(delete(session).where(session.c.digest == digest_of(secret)))
