"""A client of the control API: where it is, who we are, and its errors as ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import CommandFailed, ExitCode, usage_error

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 30.0
_EXIT_CODES = {
    400: ExitCode.USAGE,
    422: ExitCode.USAGE,
    401: ExitCode.NOT_ALLOWED,
    403: ExitCode.NOT_ALLOWED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
}
_TELLING = {"scope": "scope", "limit": "limit", "observed": "observed", "retry_after_s": "seconds to wait"}
_REMEDIES = {
    401: "set STEELYARD_TOKEN to an access token (sya_…) that is still valid",
    403: "ask an operator for a role that has this scope",
    409: "look at its present state",
    503: "steelyard status",
}


@dataclass(frozen=True)
class Place:
    """Where the control API is and with which access token we call it."""

    url: str
    token: str


def find_place(data_dir: Path) -> Place:
    """Where the environment says, else the local stack. Raises CommandFailed if neither is known."""
    url, token = os.environ.get("STEELYARD_CONTROL_URL"), os.environ.get("STEELYARD_TOKEN")
    if url and token:
        return Place(url.rstrip("/"), token)
    try:
        known = json.loads((data_dir / "credentials.json").read_bytes())
        return Place(url or str(known["control_url"]), token or str(known["token"]))
    except (FileNotFoundError, NotADirectoryError):
        why = f"no {data_dir / 'credentials.json'}, nor both of STEELYARD_CONTROL_URL and STEELYARD_TOKEN"
    except PermissionError:
        why = f"{data_dir / 'credentials.json'} belongs to another user"
    except (ValueError, KeyError, TypeError):
        why = f"{data_dir / 'credentials.json'} is damaged"
    raise CommandFailed(
        "not_connected",
        "no Steelyard to talk to",
        exit_code=ExitCode.UNREACHABLE,
        why=why,
        remedy="steelyard up --detach, --data-dir FOLDER of a stack that runs, or set the two variables",
    )


class Api:
    """Calls under `/api/v1`; answers are decoded JSON, errors are raised as CommandFailed."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query=query)

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        return self._call("POST", path, query=query, body=body or {}, idempotency_key=idempotency_key)

    def put(self, path: str, body: Mapping[str, Any], *, query: Mapping[str, Any] | None = None) -> Any:
        return self._call("PUT", path, query=query, body=body)

    def patch(self, path: str, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Any:
        return self._call("PATCH", path, body=body, idempotency_key=idempotency_key)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def rows(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every row of a list, page after page."""
        while True:
            page = self.get(path, limit=200, **query)
            yield from page["data"]
            if not page.get("has_more"):
                return
            query["after"] = page["next"]

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """The lines of an answer as they come, without their newlines.   path: whole, not below `/api/v1`.

        Raises CommandFailed if the answer breaks off.
        """
        import httpx

        known = {name: value for name, value in query.items() if value is not None}
        rest = b""
        try:
            with self._client.stream("GET", path, params=known) as answer:
                if answer.is_error:
                    raise _failure(answer.status_code, answer.read())
                for piece in answer.iter_bytes():
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from whole
            if rest:
                yield rest
        except httpx.HTTPError as error:
            raise _unreachable(str(self._client.base_url), str(error) or type(error).__name__) from error

    def only(self, path: str, *, noun: str) -> str:
        """The id of the one row of a list. Raises a usage error if there are none or several."""
        rows = self.get(path, limit=2)["data"]
        if len(rows) == 1:
            return str(rows[0]["id"])
        amount = "no" if not rows else "more than one"
        raise usage_error(f"there is {amount} {noun}: say which", remedy=f"steelyard {noun}s list")

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        import httpx

        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        known = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = self._client.request(method, f"/api/v1{path}", params=known, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise _unreachable(str(self._client.base_url), str(error) or type(error).__name__) from error
        if answer.is_error:
            raise _failure(answer.status_code, answer.content)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise _unreachable(str(self._client.base_url), "what answers there is no control API") from error


@contextmanager
def connect(data_dir: Path) -> Iterator[Api]:
    """The control API for the length of a command."""
    import httpx

    place = find_place(data_dir)
    headers = {"authorization": f"Bearer {place.token}"}
    # The control API is inside the organisation, mostly on this machine: a proxy is not the way to it.
    with httpx.Client(base_url=place.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
        yield Api(client)


def _unreachable(url: str, why: str) -> CommandFailed:
    return CommandFailed(
        "unreachable",
        f"the control API at {url} does not answer",
        exit_code=ExitCode.UNREACHABLE,
        why=why,
        remedy="steelyard status",
    )


def _failure(status: int, content: bytes) -> CommandFailed:
    try:
        known = dict(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        known = {"message": f"the control API answered with status {status}"}
    code = str(known.pop("code", "failed"))
    what = str(known.pop("message", "the request failed"))
    request_id = known.pop("request_id", None)
    return CommandFailed(
        code,
        what,
        exit_code=_EXIT_CODES.get(status, ExitCode.FAILED),
        why=_why(known),
        remedy=_remedy(status, known),
        request_id=request_id,
        facts=known,
    )


def _why(facts: Mapping[str, Any]) -> str:
    """The facts that tell a person more than the message: numbers and a hint, not what was asked anyway."""
    told = [f"{words} {facts[name]}" for name, words in _TELLING.items() if facts.get(name)]
    return ", ".join(told) or str(facts.get("hint") or "")


def _remedy(status: int, facts: Mapping[str, Any]) -> str:
    if facts.get("param") == "Idempotency-Key":
        return "repeat the first call as it was, or use another --idempotency-key"
    return _REMEDIES.get(status, "")
