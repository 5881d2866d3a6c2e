"""`steelyard up | down | status | doctor | logs`: the whole service on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.options import DEFAULT_DATA_DIR, AsJson, DataDir, noun, verb

verbs = noun(
    "steelyard",
    "A tokens service on your own accelerators: every token weighed once, priced once, billed once.",
    "steelyard up",
    "steelyard usage show",
    "steelyard requests explain req_0193f0c2",
)
Port = Annotated[
    int, typer.Option("--port", min=1, max=65000, help="Port of the gateway; the others follow it.")
]
Gateways = Annotated[
    int, typer.Option("--gateways", min=1, max=64, help="Gateway processes that share the port.")
]
EngineUrl = Annotated[
    str | None,
    typer.Option("--engine-url", help="Use this engine instead of the embedded one: http://host:port."),
]


@verb(
    verbs,
    "up",
    "steelyard up",
    "steelyard up --detach --port 9000",
    "steelyard up --ephemeral --detach --json",
)
def up(
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    port: Port = 8080,
    gateways: Gateways = 2,
    engine_url: EngineUrl = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all is ready; go on running.")
    ] = False,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep nothing: a data folder of its own.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Start database, broker, engine, gateway, settler, control, console and worker, and watch over them."""
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


@verb(
    verbs,
    "down",
    "steelyard down",
    "steelyard down --data-dir /srv/steelyard",
    'steelyard down --data-dir "$HOME/my stack"',
)
def down(*, data_dir: DataDir = DEFAULT_DATA_DIR) -> int:
    """Stop the local stack; its data stays."""
    from app.stack import commands

    return commands.down(data_dir)


@verb(
    verbs,
    "status",
    "steelyard status",
    "steelyard status --json",
    "steelyard status --data-dir /srv/steelyard",
)
def status(*, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> int:
    """Show each service of the local stack with its state."""
    from app.stack import commands

    return commands.status(data_dir, as_json=as_json)


@verb(
    verbs,
    "doctor",
    "steelyard doctor",
    "steelyard doctor --json",
    "steelyard doctor --data-dir /srv/steelyard",
)
def doctor(*, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> int:
    """Look for what keeps the stack from running, and print a fix for each finding. Changes nothing."""
    from app.stack import commands

    return commands.doctor(data_dir, as_json=as_json)


@verb(
    verbs, "logs", "steelyard logs gateway-1", "steelyard logs settler --follow", "steelyard logs --lines 20"
)
def logs(
    service: Annotated[str | None, typer.Argument(help="Service, as `steelyard status` names it.")] = None,
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of each log to begin with.")] = 50,
) -> int:
    """Print the last lines of a service's log, or of all."""
    from app.stack import commands

    return commands.logs(data_dir, service=service, follow=follow, lines=lines)
