"""`python -m app.bootstrap.admin --email E`: the first operator; prints `{"token": "sya_…"}` once.

The password comes in `STEELYARD_ADMIN_PASSWORD`, never on the command line, where others could read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from app.core.clock import SystemClock, from_ms
from app.core.database import connect_engine
from app.core.errors import SteelyardError
from app.core.settings import Settings
from app.identity.setup import create_admin

PASSWORD_VARIABLE = "STEELYARD_ADMIN_PASSWORD"  # noqa: S105 - the variable's name


async def make_admin(settings: Settings, *, email: str, password: str) -> str:
    """The secret of a fresh access token of the operator with this e-mail, committed."""
    engine = connect_engine(settings.database_url.get_secret_value(), pool_size=1)
    try:
        async with engine.begin() as connection:
            now = from_ms(SystemClock().now_ms())
            return await create_admin(connection, email=email, password=password, now=now)
    finally:
        await engine.dispose()


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 made, 1 refused, 2 called wrongly."""
    parser = argparse.ArgumentParser(prog="app.bootstrap.admin", description=__doc__)
    parser.add_argument("--email", required=True)
    email = parser.parse_args(arguments).email
    password = os.environ.get(PASSWORD_VARIABLE)
    if not password:
        parser.error(f"set {PASSWORD_VARIABLE}")
    try:
        token = asyncio.run(make_admin(Settings(), email=email, password=password))
    except SteelyardError as error:
        sys.stderr.write(f"{error.public_message}\n")
        return 1
    sys.stdout.write(json.dumps({"token": token}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
