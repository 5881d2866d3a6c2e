"""Sends an alert as an e-mail, through the mail server of the settings."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime

from pydantic import SecretStr

from app.core.settings import Settings
from billing.alerts.message import mail_of
from billing.alerts.model import Attempt, Outcome

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MailServer:
    """Where e-mails are handed over.   host: empty is none."""

    host: str
    port: int
    user: str
    password: SecretStr
    starttls: bool
    sender: str

    @classmethod
    def of(cls, settings: Settings) -> MailServer:
        """The mail server of the settings."""
        return cls(
            settings.smtp_host,
            settings.smtp_port,
            settings.smtp_user,
            settings.smtp_password,
            settings.smtp_starttls,
            settings.smtp_from,
        )


async def send(attempt: Attempt, *, server: MailServer) -> Outcome:
    """How the mail server took a message. Never raises.

    An error says what kind it was: a server's own words could hold what was sent to it.
    """
    if not server.host:
        return Outcome(error="no mail server is set")
    try:
        await asyncio.to_thread(_hand_over, attempt, server)
    except smtplib.SMTPRecipientsRefused as error:
        status = next(iter(error.recipients.values()))[0]
        return Outcome(status=status, error=f"the mail server refused the recipient: {status}")
    except smtplib.SMTPResponseException as error:
        return Outcome(status=error.smtp_code, error=f"the mail server answered {error.smtp_code}")
    except (smtplib.SMTPException, OSError) as error:
        return Outcome(error=f"the mail server could not be used: {type(error).__name__}")
    return Outcome(status=250)


def _hand_over(attempt: Attempt, server: MailServer) -> None:
    with smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S) as connection:
        if server.starttls:
            connection.starttls(context=ssl.create_default_context())
        if server.user:
            connection.login(server.user, server.password.get_secret_value())
        connection.send_message(_message(attempt, server))


def _message(attempt: Attempt, server: MailServer) -> EmailMessage:
    subject, text = mail_of(attempt)
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = server.sender
    message["To"] = attempt.address
    # The same at each attempt: a mailbox that got it twice shows it once.
    message["Message-ID"] = f"<{attempt.delivery.id}@{server.sender.rpartition('@')[2]}>"
    message["Date"] = format_datetime(attempt.delivery.created_at)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message
