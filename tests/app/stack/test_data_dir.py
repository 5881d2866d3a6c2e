"""The data folder: one holder at a time, secrets private, and words where it can't be used."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.errors import DependencyError
from app.stack.addresses import Addresses, require_free, taken
from app.stack.board import Row, State
from app.stack.data_dir import Credentials, DataDir, StackState, cache_folder, is_writable
from app.stack.files import write_private
from app.stack.schema_stamp import SchemaStamp


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    folder = DataDir(tmp_path / "data dir")
    folder.make()
    return folder


def test_a_second_stack_on_one_folder_is_told_who_holds_it(data: DataDir) -> None:
    with data.locked():
        assert data.holder() == os.getpid()
        with pytest.raises(DependencyError, match=rf"already runs on .*\(pid {os.getpid()}\)"), data.locked():
            pass
    assert data.holder() is None


def test_state_and_credentials_come_back_as_written(data: DataDir) -> None:
    state = StackState(
        1, 2, "ready", "http://gateway", "http://console", rows=[Row("postgres", State.READY, pid=7)]
    )
    credentials = Credentials("a@b", "word", api_key="sk-sy-1")
    assert data.read_state() is None
    assert data.read_credentials() is None
    data.write_state(state)
    data.write_credentials(credentials)
    assert data.read_state() == state
    assert data.read_credentials() == credentials
    assert data.credentials_file.stat().st_mode & 0o777 == 0o600


def test_damaged_credentials_are_never_overwritten_in_silence(data: DataDir) -> None:
    data.credentials_file.write_text("{")
    with pytest.raises(DependencyError, match="is damaged"):
        data.read_credentials()


def test_a_folder_that_can_not_be_made_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DependencyError, match="--data-dir FOLDER"):
        DataDir(tmp_path / "file" / "below").make()


def test_private_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


def test_the_model_cache_is_shared_unless_it_can_not_be_written(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STEELYARD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder(data) == tmp_path / "cache" / "steelyard"
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").touch()
    assert cache_folder(data) == data.root / "cache"
    monkeypatch.setenv("STEELYARD_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_folder(data) == tmp_path / "mine"


def test_a_folder_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_writable(tmp_path / "not" / "yet")
    assert not is_writable(tmp_path / "file" / "below")


def test_every_port_follows_from_one() -> None:
    ports = Addresses(9000, gateways=3).named()
    assert ports["gateway"] == 9000
    assert ports["control"] == 9001
    assert ports["gateway-3 metrics"] == 9012
    assert len(set(ports.values())) == len(ports) == 9


def test_a_port_in_use_is_named_with_the_flag_that_helps() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        addresses = Addresses(port - 1, gateways=1)
        assert taken(addresses)["control"] == port
        with pytest.raises(DependencyError, match=rf"{port} \(control\).*\n.*--port"):
            require_free(addresses)


def test_a_port_for_root_alone_is_said_to_be_one() -> None:
    with socket.socket() as other:
        with suppress(OSError):  # who may, takes it: so it isn't free for root either
            other.bind(("127.0.0.1", 1023))
            other.listen()
        with pytest.raises(DependencyError, match=r"is for root\n.*--port 9000"):
            require_free(Addresses(1023, gateways=1))


def test_migrations_run_again_when_a_script_is_new_or_changed(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.mkdir()
    (versions / "0001.py").write_text("one")
    stamp = SchemaStamp(tmp_path / "schema", versions)
    assert not stamp.is_current()
    stamp.write()
    assert stamp.is_current()
    (versions / "0001.py").write_text("ONE")
    assert not stamp.is_current()
    stamp.write()
    (versions / "0002.py").write_text("two")
    assert not stamp.is_current()
