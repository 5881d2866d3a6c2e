"""`steelyard up | down | status | doctor | logs`: the whole service on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, described

Port = Annotated[int, typer.Option("--port", min=1, max=65000, help="Port of the gateway; the others follow it.")]
Gateways = Annotated[int, typer.Option("--gateways", min=1, max=64, help="Gateway processes that share the port.")]
EngineUrl = Annotated[
    str | None, typer.Option("--engine-url", help="Use this engine instead of the embedded one: http://host:port.")
]


def add_to(app: typer.Typer) -> None:
    """Add the five verbs of the local stack to the root command."""
    app.command(help=_UP)(up)
    app.command(help=_DOWN)(down)
    app.command(help=_STATUS)(status)
    app.command(help=_DOCTOR)(doctor)
    app.command(help=_LOGS)(logs)


_UP = described(
    "Start database, broker, engine, gateway, settler, control, console and worker, and watch over them.",
    "steelyard up",
    "steelyard up --detach --port 9000",
    "steelyard up --ephemeral --detach --json",
)
_DOWN = described(
    "Stop the local stack; its data stays.",
    "steelyard down",
    "steelyard down --data-dir /srv/steelyard",
    "steelyard up --detach && steelyard down",
)
_STATUS = described(
    "Show each service of the local stack with its state.",
    "steelyard status",
    "steelyard status --json",
    "steelyard status --data-dir /srv/steelyard",
)
_DOCTOR = described(
    "Look for what keeps the stack from running, and print a fix for each finding. Changes nothing.",
    "steelyard doctor",
    "steelyard doctor --json",
    "steelyard doctor --data-dir /srv/steelyard",
)
_LOGS = described(
    "Print the last lines of a service's log, or of all.",
    "steelyard logs gateway-1",
    "steelyard logs settler --follow",
    "steelyard logs --lines 20",
)


def up(
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    port: Port = 8080,
    gateways: Gateways = 2,
    engine_url: EngineUrl = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all is ready; go on running.")] = False,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep nothing: a data folder of its own.")] = False,
    as_json: AsJson = False,
) -> int:
    from app.stack import commands

    options = commands.UpOptions(
        data_dir=data_dir,
        port=port,
        gateways=gateways,
        engine_url=engine_url,
        detach=detach,
        ephemeral=ephemeral,
        as_json=as_json,
    )
    return commands.up(options)


def down(*, data_dir: DataDir = DEFAULT_DATA_DIR) -> int:
    from app.stack import commands

    return commands.down(data_dir)


def status(*, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> int:
    from app.stack import commands

    return commands.status(data_dir, as_json=as_json)


def doctor(*, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> int:
    from app.stack import commands

    return commands.doctor(data_dir, as_json=as_json)


def logs(
    service: Annotated[str | None, typer.Argument(help="Service, as `steelyard status` names it.")] = None,
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of each log to begin with.")] = 50,
) -> int:
    from app.stack import commands

    return commands.logs(data_dir, service=service, follow=follow, lines=lines)
