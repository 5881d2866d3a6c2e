"""What a deployment is made of, checked by the tools that will read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.settings import Settings

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
PASSWORDS = {
    f"STEELYARD_{whose}_PASSWORD": f"{whose.lower()}-secret"
    for whose in ("SUPERUSER", "OWNER", "APP", "BROKER")
}
OF_THE_STACK = {"STEELYARD_ADMIN_PASSWORD", "STEELYARD_CACHE_DIR", *PASSWORDS}
"""Environment variables of ours that are no settings of a process."""


def run(*command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(command),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """docker-compose.yml as Compose itself understands it, every profile on."""
    command = [TOOLS / "docker-compose", "--profile", "*", "config"]
    return dict(yaml.safe_load(run(*command, environment=PASSWORDS)))


def test_compose_has_the_services_of_the_local_stack(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {
        *("postgres", "valkey", "migrate", "gateway", "settler", "control", "worker", "admin", "engine"),
    }


def test_compose_refuses_to_start_without_passwords() -> None:
    with pytest.raises(AssertionError, match=r"choose one in \.env"):
        run(TOOLS / "docker-compose", "--env-file", "/dev/null", "config", "-q")


def test_the_example_environment_names_every_password() -> None:
    names = {
        line.partition("=")[0] for line in (ROOT / "deploy/compose.env.example").read_text().splitlines()
    }
    assert names >= PASSWORDS.keys()


def test_every_variable_that_a_deployment_sets_is_a_setting(compose: dict[str, Any]) -> None:
    known = {f"STEELYARD_{name.upper()}" for name in Settings.model_fields} | OF_THE_STACK
    named = {name for service in compose["services"].values() for name in service.get("environment") or {}}
    named |= {word.partition("=")[0] for word in (ROOT / "Dockerfile").read_text().split()}
    assert {name for name in named if name.startswith("STEELYARD_")} <= known


def test_gateway_and_settler_share_the_journal(compose: dict[str, Any]) -> None:
    def journal(name: str) -> list[tuple[str, str]]:
        return [(volume["source"], volume["target"]) for volume in compose["services"][name]["volumes"]]

    assert journal("gateway") == journal("settler") == [("journal", "/var/lib/steelyard/journal")]


def test_our_containers_run_without_privileges(compose: dict[str, Any]) -> None:
    ours = [service for service in compose["services"].values() if service["image"] == "steelyard:local"]
    assert len(ours) == 7
    for service in ours:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
    assert "USER 10001:10001" in (ROOT / "Dockerfile").read_text()


def test_only_gateway_and_control_are_reachable_from_outside(compose: dict[str, Any]) -> None:
    assert {name for name, service in compose["services"].items() if service.get("ports")} == {
        "gateway",
        "control",
    }


def test_the_owner_of_the_tables_is_known_to_the_migration_alone(compose: dict[str, Any]) -> None:
    told = {
        name
        for name, service in compose["services"].items()
        if PASSWORDS["STEELYARD_OWNER_PASSWORD"] in str(service.get("environment"))
    }
    assert told == {"postgres", "migrate"}


def test_the_dockerfile_passes_its_linter() -> None:
    run(TOOLS / "hadolint", "Dockerfile")


@pytest.mark.parametrize(
    "script", sorted(path.relative_to(ROOT) for path in (ROOT / "deploy").rglob("*.sh")), ids=str
)
def test_shell_scripts_have_no_syntax_errors(script: Path) -> None:
    run("sh", "-n", script)


@pytest.fixture
def spaced(tmp_path: Path) -> Path:
    """The build files under a path with spaces, as if the environment were installed already."""
    folder = tmp_path / "a folder with spaces"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "deploy").mkdir()
    for name in ("Makefile", "deploy/install.sh", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, folder / name)
    command = folder / ".venv/bin/steelyard"
    command.write_text('#!/bin/sh\nprintf "%s|" steelyard "$@"\n')
    command.chmod(0o755)
    (folder / ".venv/installed").touch()
    return folder


def test_make_passes_flags_on_under_a_path_with_spaces(spaced: Path) -> None:
    said = run("make", "up", "ARGS=--port 9000 --data-dir 'my data'", folder=spaced)
    assert said == "steelyard|up|--port|9000|--data-dir|my data|"


def test_make_alone_lists_the_verbs(spaced: Path) -> None:
    said = run("make", folder=spaced)
    for verb in ("up", "down", "check", "test", "test-all", "bench-%", "seed", "docs", "lock"):
        assert f"make {verb} " in said


def test_an_old_python_is_refused_in_words(spaced: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    (spaced / ".venv/installed").unlink()
    with pytest.raises(AssertionError, match=r"is not Python 3\.11 or newer; name one: make up PYTHON="):
        run("make", "up", f"PYTHON={old}", folder=spaced)


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
