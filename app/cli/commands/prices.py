"""`steelyard prices …`: dated sets of prices."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.api import Api, connect
from app.cli.errors import CommandFailed, ExitCode, usage_error
from app.cli.options import (
    DEFAULT_DATA_DIR,
    After,
    AsJson,
    DataDir,
    IdempotencyKey,
    Limit,
    Yes,
    noun,
    verb,
)
from app.cli.present import confirm, idempotency_key, print_json, show_page, show_record, show_rows

verbs = noun(
    "prices",
    "Price books and their dated versions; a price is an amount per million tokens.",
    "steelyard prices show",
    "steelyard prices list",
    "steelyard prices publish --price qwen3-8b:input=0.54 --price qwen3-8b:output=2.16",
)
BOOKS = {"id": "id", "name": "name", "currency": "currency", "is_default": "default"}
PRICES = {"model": "model", "meter": "meter", "price": "per million tokens"}
BookOption = Annotated[
    str | None, typer.Option("--book", help="Price book id; else the only or the default one.")
]


@verb(
    verbs,
    "list",
    "steelyard prices list",
    "steelyard prices list --json",
    "steelyard prices list --limit 500",
)
def list_books(
    *, limit: Limit = 50, after: After = None, as_json: AsJson = False, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the price books."""
    with connect(data_dir) as api:
        page = api.get("/price-books", limit=limit, after=after)
    show_page(
        page, BOOKS, as_json=as_json, empty="no price books: steelyard prices create NAME --currency USD"
    )


@verb(
    verbs,
    "create",
    "steelyard prices create standard --currency USD --default",
    "steelyard prices create partners --currency EUR",
    "steelyard prices create partners --currency EUR --json",
)
def create(
    name: Annotated[str, typer.Argument(help="Name of the book.")],
    *,
    currency: Annotated[str, typer.Option(help="ISO 4217 code of its prices.")],
    default: Annotated[
        bool, typer.Option("--default", help="For tenants of this currency without a book.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Create an empty price book."""
    with connect(data_dir) as api:
        body = {"name": name, "currency": currency, "is_default": default}
        show_record(api.post("/price-books", body), as_json=as_json)


@verb(
    verbs,
    "show",
    "steelyard prices show",
    "steelyard prices show --book pbk_0193f0c2",
    "steelyard prices show --version pbv_0193f0c2 --json",
)
def show(
    *,
    book: BookOption = None,
    version: Annotated[str | None, typer.Option("--version", help="Price version id: pbv_…")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show the prices of a version; without one, of the version published last."""
    with connect(data_dir) as api:
        chosen = version or _published_last(api, _book(api, book))
        answer = api.get(f"/price-versions/{chosen}")
    if as_json:
        print_json(answer)
        return
    show_record({name: value for name, value in answer.items() if name != "prices"}, as_json=False)
    print()
    show_rows(answer["prices"], PRICES, as_json=False)


@verb(
    verbs,
    "publish",
    "steelyard prices publish --price m:input=0.54 --price m:input_cached=0.18 "
    "--price m:input_cache_write=0.54 --price m:output=2.16",
    "steelyard prices publish --version pbv_0193f0c2 --yes",
    "steelyard prices publish --version pbv_0193f0c2 --from 2026-12-01T00:00:00Z --yes",
)
def publish(
    *,
    price: Annotated[
        list[str] | None, typer.Option(help="MODEL:METER=AMOUNT per million tokens; repeat.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", help="Publish this draft instead of new prices.")
    ] = None,
    book: BookOption = None,
    effective_from: Annotated[
        str | None, typer.Option("--from", help="Instant from which it holds; else now.")
    ] = None,
    yes: Yes = False,
    key: IdempotencyKey = None,
    as_json: AsJson = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Publish a full set of prices as the next version of a book. It can't be changed after that."""
    prices = [_parse(text) for text in price or ()]
    if bool(prices) == bool(version):
        raise usage_error(
            "name either prices (--price) or a draft (--version)", remedy="steelyard prices publish --help"
        )
    confirm(f"Publish {version or f'{len(prices)} prices'} from {effective_from or 'now'} on?", yes=yes)
    key = idempotency_key(key)
    with connect(data_dir) as api:
        draft = version or _draft(api, _book(api, book), prices=prices)
        body = {"effective_from": effective_from} if effective_from else {}
        show_record(api.post(f"/price-versions/{draft}/publish", body, idempotency_key=key), as_json=as_json)


def _parse(text: str) -> dict[str, str]:
    target, equals, amount = text.rpartition("=")
    model, colon, meter = target.rpartition(":")
    if not (equals and colon and model and amount):
        raise usage_error(
            f"not a price: {text}", remedy="--price MODEL:METER=AMOUNT, such as qwen3-8b:input=0.54"
        )
    return {"model": model, "meter": meter, "price": amount}


def _draft(api: Api, book: str, *, prices: list[dict[str, str]]) -> str:
    draft = str(api.post(f"/price-books/{book}/versions")["id"])
    api.put(f"/price-versions/{draft}/prices", {"prices": prices})
    return draft


def _book(api: Api, given: str | None) -> str:
    if given:
        return given
    books = list(api.rows("/price-books"))
    likely = [book for book in books if book.get("is_default")] if len(books) > 1 else books
    if len(likely) != 1:
        raise usage_error("say which price book: --book", remedy="steelyard prices list")
    return str(likely[0]["id"])


def _published_last(api: Api, book: str) -> str:
    published = [v for v in api.rows(f"/price-books/{book}/versions") if v["status"] == "published"]
    if not published:
        raise CommandFailed(
            "not_found",
            f"price book {book} has no published version",
            exit_code=ExitCode.NOT_FOUND,
            remedy="steelyard prices publish --help",
        )
    return str(max(published, key=lambda v: str(v["effective_from"]))["id"])
