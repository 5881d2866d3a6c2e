"""The embedded PostgreSQL on the machines it must simply work on."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from app.core.errors import DependencyError
from app.stack.account import Account, unprivileged
from app.stack.folders import private_folder, short_socket_folder
from app.stack.postgres import APP, OWNER, Postgres
from app.stack.postgres_home import settle


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any account can reach, so that root's server can live in it; short, for its socket."""
    folder = Path(tempfile.mkdtemp(prefix="sy-pg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def postgres(open_folder: Path) -> Iterator[Postgres]:
    server = Postgres(open_folder / "with space" / "postgres", durable=False)
    yield server
    server.stop()


async def ask(postgres: Postgres, question: str, *, role: str = OWNER) -> object:
    connection = await asyncpg.connect(postgres.url(role=role))
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_it_starts_under_a_path_with_spaces_and_is_not_root(postgres: Postgres) -> None:
    postgres.start()
    assert await ask(postgres, "SELECT current_user::text", role=APP) == APP
    assert postgres.home.data.stat().st_uid != 0


async def test_facts_survive_a_stop_and_a_start(postgres: Postgres) -> None:
    postgres.start()
    await ask(postgres, "CREATE TABLE kept ()")
    postgres.stop()
    postgres.start()
    assert await ask(postgres, "SELECT to_regclass('kept')::text") == "kept"


async def test_a_killed_server_starts_again_over_its_stale_pid_file(postgres: Postgres) -> None:
    postgres.start()
    postgres._process.send_signal(signal.SIGKILL)  # type: ignore[union-attr]
    postgres._process.wait()  # type: ignore[union-attr]
    lock = postgres.home.data / "postmaster.pid"
    lines = lock.read_text().splitlines()
    # As after a restart of a container: the old pid now belongs to another living process, ours.
    lock.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert not postgres.is_ready()
    postgres.start()
    assert await ask(postgres, "SELECT 1") == 1


async def test_two_servers_run_side_by_side(postgres: Postgres, open_folder: Path) -> None:
    other = Postgres(open_folder / "other", durable=False)
    try:
        postgres.start()
        other.start()
        await ask(postgres, "CREATE TABLE here ()")
        assert await ask(other, "SELECT to_regclass('here')") is None
    finally:
        other.stop()


async def test_a_wrong_password_is_refused(postgres: Postgres) -> None:
    postgres.start()
    url = postgres.url(role=APP).replace(f"{APP}:", f"{APP}:x", 1)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url)


def test_passwords_lie_in_a_private_file(postgres: Postgres, open_folder: Path) -> None:
    postgres.prepare()
    secret = open_folder / "with space" / "postgres" / "postgres.secrets.json"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert postgres.home.socket_folder.stat().st_mode & 0o777 == 0o700


def test_a_server_that_cannot_start_says_its_last_words(postgres: Postgres) -> None:
    postgres.prepare()
    (postgres.home.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(DependencyError, match="not compatible"):
        postgres.start()


def test_a_second_launcher_of_a_running_server_is_refused(postgres: Postgres) -> None:
    postgres.start()
    second = Postgres(postgres._folder)
    with pytest.raises(DependencyError, match="already runs"):
        second._clear_stale_locks(timeout_s=0)


def test_a_socket_folder_too_deep_moves_to_a_short_private_one(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    short = short_socket_folder(deep, ".s.PGSQL.5432")
    assert len(str(short)) < 60
    assert short == short_socket_folder(deep, ".s.PGSQL.5432")
    assert short_socket_folder(tmp_path / "a,b", ".s.PGSQL.5432").parent == short.parent
    assert short_socket_folder(Path("/a"), ".s.PGSQL.5432") == Path("/a")


def test_a_socket_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "planted").symlink_to(tmp_path / "real")
    with pytest.raises(DependencyError, match="someone else"):
        private_folder(tmp_path / "planted", Account("same", os.geteuid(), os.getegid()))


STARTED_ELSEWHERE = """
import os, sys
from pathlib import Path
from app.stack.postgres import Postgres
server = Postgres(Path(sys.argv[1]), durable=False)
server.start()
print(server._process.pid, server._account.kind, flush=True)
sys.stdin.read()
"""


def start_elsewhere(folder: Path, *, user: int | None = None) -> subprocess.Popen[str]:
    """A process that starts the server of `folder`, prints its pid and account, and waits."""
    same_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path(sys.executable).resolve()
    reachable = (
        own if user is None or unprivileged().reaches(own) else shutil.which(same_version, path=os.defpath)
    )
    roots = [str(Path(__file__).parents[3]), sysconfig.get_path("purelib")]
    return subprocess.Popen(
        [str(reachable), "-c", STARTED_ELSEWHERE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def wait_for_end(pid: int) -> None:
    """Return once process `pid` is gone; the test's own time limit bounds it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


def test_the_server_ends_when_its_launcher_is_killed(open_folder: Path) -> None:
    with start_elsewhere(open_folder / "postgres") as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline().split()[0])
        launcher.kill()
    wait_for_end(pid)
    again = Postgres(open_folder / "postgres", durable=False)
    again.start()
    again.stop()


def test_an_ordinary_user_runs_it_as_himself(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    user = unprivileged().uid if os.geteuid() == 0 else None
    if user is not None:
        os.chown(home, user, user)
    with start_elsewhere(home / "postgres", user=user) as launcher:
        assert launcher.stdout is not None
        pid, kind = launcher.stdout.readline().split()
        launcher.kill()
    assert kind == "same"
    wait_for_end(int(pid))


def test_root_that_may_not_change_users_runs_it_in_a_namespace(open_folder: Path) -> None:
    server = Postgres(open_folder / "postgres", durable=False)
    if os.geteuid() == 0:
        server._account = Account("namespace", 0, 0)
    server.start()
    server.stop()
    assert server.home.data.stat().st_uid == os.geteuid()


def test_root_keeps_data_that_the_server_could_not_reach_elsewhere(tmp_path: Path) -> None:
    account = unprivileged()
    (tmp_path / "closed").mkdir(mode=0o700)
    home = settle(tmp_path / "closed" / "postgres", account)
    hidden = home.data.is_relative_to(tmp_path)
    assert hidden == (account.kind != "other")
    if not hidden:
        shutil.rmtree(home.data.parent)
