from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from scheduler.simulator.__main__ import parse_arguments
from scheduler.simulator.model import Fault, FaultKind, Options
from scheduler.transport.client import EngineClient
from scheduler.transport.model import parse_target
from tests.scheduler.engines import PATIENT, Answer, chat


def test_a_bare_command_line_means_the_plain_options() -> None:
    assert parse_arguments([]) == ("127.0.0.1", 0, Options())


def test_every_option_can_be_given() -> None:
    line = (
        "--host ::1 --port 9 --model m --max-model-len 5 --tokens 4 --tokens-per-chunk 2 --chunk-ms 1.5 "
        "--ttft-ms 2 --prefill-ms-per-ktoken 3 --cached 6 --max-num-seqs 7 --max-queued 8 --fault die:3 "
        "--fault-every 2 --multibyte --no-prompt-details --close-after-stream"
    )
    host, port, options = parse_arguments(line.split())
    assert (host, port) == ("::1", 9)
    assert options == Options(
        model="m",
        max_model_len=5,
        tokens=4,
        tokens_per_chunk=2,
        chunk_ms=1.5,
        ttft_ms=2,
        prefill_ms_per_ktoken=3,
        cached=6,
        max_num_seqs=7,
        max_queued=8,
        fault=Fault(FaultKind.DIE, 3),
        fault_every=2,
        multibyte=True,
        prompt_details=False,
        close_after_stream=True,
    )


def test_an_unknown_fault_ends_with_a_usage_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--fault", "explode"])
    assert "--fault" in capsys.readouterr().err


async def test_as_a_process_it_says_where_it_listens_serves_and_ends_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler.simulator", "--model", "m", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        client, answer = EngineClient(), Answer()
        client.send(parse_target(url), chat(model="m"), deadlines=PATIENT, sink=answer)
        await answer.over.wait()
        assert answer.status == 200
        await client.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
