"""Alerts from an allowance to a receiver: the worker's own functions, a real database, real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from email import message_from_string

import pytest
from pydantic import SecretStr

from app.core.clock import Clock, ManualClock, SystemClock
from app.core.log import redact
from app.core.settings import Settings
from app.stack.program import SOURCE_ROOT
from app.workers.alerts import look_over_alerts, raise_alerts
from app.workers.deliveries import deliver_alerts
from billing.alerts import outbox
from billing.alerts.message import shown_secret, sign
from billing.alerts.model import Delivery
from tests.app.workers.receiver import open_mail_sink, open_receiver, status
from tests.billing.alerts.tower import Tower, open_tower
from tests.database import Database

SETTINGS = Settings(webhook_private_hosts="localhost")


async def delivered(tower: Tower, settings: Settings = SETTINGS, *, clock: Clock | None = None) -> int:
    return await asyncio.to_thread(
        deliver_alerts, tower.desk.url, settings=settings, clock=clock or tower.clock
    )


async def raised(tower: Tower) -> int:
    return await asyncio.to_thread(raise_alerts, tower.desk.url, clock=tower.clock)


async def alarm(tower: Tower, used: int = 50) -> str:
    wallet = await tower.allowance(100)
    await tower.lend(await tower.desk.incarnation(), wallet, used)
    await raised(tower)
    return wallet


async def only_delivery(tower: Tower) -> Delivery:
    (delivery,) = await tower.deliveries()
    return delivery


async def test_an_alert_reaches_its_webhook_signed_and_once(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        await tower.endpoint(receiver.url)
        wallet = await alarm(tower)
        assert (await delivered(tower), await delivered(tower)) == (1, 0)
        (got,) = receiver.got
        secret = await tower.desk.pool.fetchval("SELECT secret FROM alert_secret")
        delivery = await only_delivery(tower)
        assert got.target == "/hook?room=1"
        assert got.headers["host"] == f"localhost:{receiver.port}"
        assert got.headers["webhook-id"] == delivery.id
        assert got.headers["webhook-signature"] == sign(
            got.body,
            secret=secret,
            message_id=delivery.id,
            timestamp=got.headers["webhook-timestamp"],
        )
        assert json.loads(got.body)["data"]["allowance_id"] == wallet
        assert (delivery.status, delivery.last_status, delivery.last_error) == ("delivered", 204, None)


async def test_a_failure_is_tried_again_when_its_time_has_come(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        receiver.answers = [status(500), status(204)]
        await tower.endpoint(receiver.url)
        await alarm(tower)
        assert await delivered(tower) == 1
        delivery = await only_delivery(tower)
        assert (delivery.status, delivery.last_status) == ("pending", 500)
        assert await delivered(tower) == 0
        tower.clock.advance(13)
        assert await delivered(tower) == 1
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
        assert (await only_delivery(tower)).status == "delivered"


@pytest.mark.parametrize("code", [301, 302, 307, 400, 404, 429, 503])
async def test_only_2xx_takes_a_delivery_and_redirects_are_not_followed(
    database: Database, code: int
) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver, open_receiver() as other:
        receiver.answers = [status(code, location=other.url)]
        await tower.endpoint(receiver.url)
        await alarm(tower)
        await delivered(tower)
        assert (await only_delivery(tower)).last_error == f"it answered {code}"
        assert other.got == []


async def test_410_disables_the_endpoint(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        receiver.answers = [status(410)]
        await tower.endpoint(receiver.url)
        await alarm(tower)
        await delivered(tower)
        assert (await only_delivery(tower)).status == "dead"
        assert await tower.desk.pool.fetchval("SELECT status FROM alert_endpoint") == "disabled"


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 100_000


async def test_an_answer_without_end_is_not_waited_for(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        receiver.answers = [ENDLESS]
        await tower.endpoint(receiver.url)
        await alarm(tower)
        await delivered(tower)
        assert (await only_delivery(tower)).status == "delivered"


async def test_a_host_inside_is_not_reached_unless_the_operator_names_it(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        for url in (
            f"https://127.0.0.1:{receiver.port}/",
            f"https://localhost:{receiver.port}/",
            receiver.url,
        ):
            await tower.endpoint(url)
        await alarm(tower)
        assert await delivered(tower, Settings()) == 3
        assert receiver.got == []
        assert all(
            (each.last_error or "").startswith("the URL was refused") for each in await tower.deliveries()
        )


async def test_a_receiver_that_nobody_can_reach_is_told_in_our_words(database: Database) -> None:
    async with open_tower(database) as tower:
        async with open_receiver() as closed:
            await tower.endpoint(closed.url)
        await alarm(tower)
        await delivered(tower)
        assert (await only_delivery(tower)).last_error == "it could not be reached: ConnectError"


async def test_a_worker_killed_between_sending_and_writing_sends_again_under_the_same_id(
    database: Database,
) -> None:
    async with open_tower(database) as tower, open_receiver() as receiver:
        tower.clock = ManualClock(SystemClock().now_ms())
        receiver.answers = [None, status(204)]
        await tower.endpoint(receiver.url)
        await alarm(tower)
        environment = {
            "PYTHONPATH": str(SOURCE_ROOT),
            "STEELYARD_DATABASE_URL": database.app_url,
            "STEELYARD_WEBHOOK_PRIVATE_HOSTS": "localhost",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.app.workers.deliver_process", env=os.environ | environment
        )
        await receiver.came.wait()
        process.kill()
        await process.wait()
        assert (await only_delivery(tower)).attempts == 1
        tower.clock = ManualClock(SystemClock().now_ms())
        assert await delivered(tower) == 0
        tower.clock.advance(outbox.CLAIM.total_seconds() + 1)
        assert await delivered(tower) == 1
        first, second = receiver.got
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.body == second.body
        assert (await only_delivery(tower)).status == "delivered"
        assert len(await tower.alerts()) == 1


async def test_an_alert_reaches_a_mailbox(database: Database) -> None:
    async with open_tower(database) as tower, open_mail_sink() as sink:
        settings = Settings(
            smtp_host="127.0.0.1", smtp_port=sink.port, smtp_starttls=False, smtp_from="meter@example.com"
        )
        await tower.endpoint("finance@example.com", kind="email")
        await alarm(tower)
        assert await delivered(tower, settings) == 1
        (mail,) = (message_from_string(each) for each in sink.mails)
        delivery = await only_delivery(tower)
        assert mail["Subject"] == "Steelyard: Tenant Acme: 50 % of limit used"
        assert (mail["To"], mail["From"]) == ("finance@example.com", "meter@example.com")
        assert mail["Message-ID"] == f"<{delivery.id}@example.com>"
        assert (delivery.status, delivery.last_status) == ("delivered", 250)


async def test_a_mail_server_that_refuses_is_tried_again(database: Database) -> None:
    async with open_tower(database) as tower, open_mail_sink() as sink:
        sink.replies["RCPT"] = "450 later, finance@example.com"
        settings = Settings(smtp_host="127.0.0.1", smtp_port=sink.port, smtp_starttls=False)
        await tower.endpoint("finance@example.com", kind="email")
        await alarm(tower)
        await delivered(tower, settings)
        delivery = await only_delivery(tower)
        assert (delivery.status, delivery.last_status) == ("pending", 450)
        assert delivery.last_error == "the mail server refused the recipient: 450"


async def test_a_password_never_travels_without_the_tls_that_is_demanded(database: Database) -> None:
    async with open_tower(database) as tower, open_mail_sink() as sink:
        settings = Settings(
            smtp_host="127.0.0.1", smtp_port=sink.port, smtp_user="meter", smtp_password=SecretStr("hunter22")
        )
        await tower.endpoint("finance@example.com", kind="email")
        await alarm(tower)
        await delivered(tower, settings)
        assert not [line for line in sink.said if line.startswith(("AUTH", "MAIL"))]
        delivery = await only_delivery(tower)
        assert "hunter22" not in str(delivery)
        assert (await only_delivery(tower)).status == "pending"


async def test_without_a_mail_server_the_delivery_says_so(database: Database) -> None:
    async with open_tower(database) as tower:
        await tower.endpoint("finance@example.com", kind="email")
        await alarm(tower)
        await delivered(tower, Settings())
        assert (await only_delivery(tower)).last_error == "no mail server is set"


async def test_a_slow_receiver_does_not_hold_up_the_others_of_a_round(database: Database) -> None:
    async with open_tower(database) as tower, open_receiver() as slow, open_receiver() as quick:
        slow.answers = [None]
        await tower.endpoint(slow.url)
        await tower.endpoint(quick.url)
        await alarm(tower)
        delivering = asyncio.create_task(delivered(tower))
        await quick.came.wait()
        assert await delivered(tower) == 0  # the first call is at it
        slow.done.set()
        assert await delivering == 2


async def test_all_is_looked_over_for_what_has_no_mark(database: Database) -> None:
    async with open_tower(database) as tower:
        wallet = await alarm(tower, used=1)
        await tower.desk.pool.execute("DELETE FROM alert_due")
        async with tower.engine.begin() as connection:
            await connection.exec_driver_sql("UPDATE allowance SET spent = 90")
        assert await asyncio.to_thread(look_over_alerts, tower.desk.url, clock=tower.clock) == 2
        assert await tower.told(wallet) == [50, 80]


def test_a_secret_is_blotted_out_of_logs_and_audit_rows() -> None:
    secret = shown_secret(bytes(range(200, 232)))
    assert redact(f'{{"secret": "{secret}"}}') == '{"secret": "[secret]"}'
