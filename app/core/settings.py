"""Every setting in one typed place. Environment variables with the prefix `STEELYARD_`.

`docs/settings.md` documents each; a test compares the two. `steelyard up` sets them for the
processes that it starts; a deployment sets them by hand.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What a process needs to know of its surroundings."""

    model_config = SettingsConfigDict(env_prefix="STEELYARD_", extra="ignore", frozen=True)

    database_url: SecretStr = Field(
        SecretStr("postgresql://steelyard_app@localhost/steelyard"),
        description="PostgreSQL of the running processes, as a libpq URL; a Unix socket by `?host=/folder`.",
    )
    migration_database_url: SecretStr | None = Field(
        None, description="PostgreSQL as the owner of the tables, for migrations; else `database_url`."
    )
    broker_url: SecretStr = Field(
        SecretStr("redis://localhost:6379/0"), description="Celery's broker: Valkey, Redis or RabbitMQ."
    )
    journal_dir: Path = Field(
        Path(".steelyard/journal"),
        description="Folder of this machine's gateway journals; shared by its gateways and its settler.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level logged.")

    gateway_host: str = Field("127.0.0.1", description="Address on which the gateway listens.")
    gateway_port: int = Field(
        8080, ge=1, le=65535, description="Port of the data plane, shared by its processes."
    )
    control_host: str = Field("127.0.0.1", description="Address on which control API and console listen.")
    control_port: int = Field(8081, ge=1, le=65535, description="Port of the control API and the console.")
    metrics_host: str = Field("127.0.0.1", description="Address of each process' own /metrics and /health.")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="Port of this process' own /metrics and /health; 0: no such listener."
    )

    body_limit_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Largest request body the gateway reads, in bytes."
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="Longest time a request's head and body may take to come."
    )
    connect_timeout_s: float = Field(2.0, gt=0, description="Longest time to connect to an engine.")
    first_token_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Longest time from sending a streamed request to an engine to its first token.",
    )
    idle_timeout_s: float = Field(
        60.0, gt=0, description="Longest silence within an engine's streamed answer."
    )
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest time of one attempt at an engine in all."
    )
    attempts: int = Field(
        3, ge=1, le=10, description="Most backends tried for one request before its first byte."
    )
    probe_interval_s: float = Field(2.0, gt=0, description="Time between two health probes of a backend.")
    recall_bound_s: float = Field(
        0.15, gt=0, description="Longest wait for other processes' unused lease before a request is refused."
    )
    money_refusal_status: Literal[402, 429] = Field(
        429, description="Status of a refusal for want of money; SDKs are told not to retry it either way."
    )
    lease_renew_s: float = Field(0.25, gt=0, description="Time between two background renewals of leases.")
    rates_when_cut_off: Literal["share", "closed", "open"] = Field(
        "share",
        description="What limits per minute do while PostgreSQL is away for longer than 5 s: `share`: each "
        "process goes on at its last share; `closed`: nothing; `open`: all up to a burst. Money never opens.",
    )
    journal_commit_ms: int = Field(
        5,
        ge=0,
        le=1000,
        description="Longest time for which settled records are gathered before one disk sync.",
    )
    journal_max_bytes: int = Field(
        4 * 1024**3,
        ge=0,
        description="Most unposted bytes in a gateway's journal; beyond it admits no more. 0: no bound.",
    )
    journal_free_bytes: int = Field(
        64 * 1024**2,
        ge=0,
        description="Least free space on the journal's disk; below it a gateway admits no more.",
    )
    progress_interval_s: float = Field(
        2.0, gt=0, description="Time between two progress rows of a running stream in the journal."
    )
    settle_interval_s: float = Field(
        0.1, gt=0, description="Time between two looks of the settler at the journals."
    )
    settle_processes: int = Field(
        2, ge=1, le=16, description="Processes that settle this machine's journals, each a share of them."
    )
    reconcile_lag_s: float = Field(
        1800.0,
        ge=0,
        description="Age from which on engines' counters are compared: longer than requests run and settle.",
    )
    engine_reading_days: int = Field(
        14, ge=2, description="Days for which single readings of engines' counters are kept; their sums stay."
    )
    session_hours: int = Field(12, ge=1, description="Life of a console session in hours.")
    webhook_private_hosts: str = Field(
        "",
        description="Hosts, separated by commas, that webhooks reach at private addresses or without TLS.",
    )
    smtp_host: str = Field("", description="Mail server for alerts; empty: no e-mail is sent.")
    smtp_port: int = Field(587, ge=1, le=65535, description="Port of the mail server.")
    smtp_user: str = Field("", description="User at the mail server; empty: no login.")
    smtp_password: SecretStr = Field(SecretStr(""), description="Its password.")
    smtp_starttls: bool = Field(True, description="Whether TLS is demanded of the mail server.")
    smtp_from: str = Field("steelyard@localhost", description="Sender of e-mails.")


@cache
def settings() -> Settings:
    """The settings of this process, read from its environment once."""
    return Settings()
