"""`python -m scheduler.simulator --port 9001 --model m`: the stand-in as a process, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

import uvloop

from scheduler.simulator.engine import SimulatedEngine
from scheduler.simulator.model import FaultKind, Options, parse_fault


def parse_arguments(arguments: Sequence[str]) -> tuple[str, int, Options]:
    """Host, port and options of a command line; exits with a usage message if it isn't one."""
    plain = Options()
    parser = argparse.ArgumentParser(prog="python -m scheduler.simulator", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free one; it is printed")
    add("--model", default=plain.model)
    add("--max-model-len", type=int, default=plain.max_model_len)
    add("--tokens", type=int, help="natural length of an answer; else max_tokens")
    add("--tokens-per-chunk", type=int, default=plain.tokens_per_chunk)
    add("--chunk-ms", type=float, default=plain.chunk_ms, help="time per chunk")
    add("--ttft-ms", type=float, default=plain.ttft_ms, help="time to the first token")
    add("--prefill-ms-per-ktoken", type=float, default=plain.prefill_ms_per_ktoken)
    add("--cached", type=int, default=plain.cached, help="prompt tokens reported as cached")
    add("--max-num-seqs", type=int, default=plain.max_num_seqs)
    add("--max-queued", type=int, default=plain.max_queued, help="more than that wait: 503")
    add("--fault", type=parse_fault, help=f"kind[:n]; kinds: {', '.join(FaultKind)}")
    add("--fault-every", type=int, default=plain.fault_every, help="on every n-th request only")
    add("--multibyte", action="store_true", help="text in many scripts")
    add("--no-prompt-details", dest="prompt_details", action="store_false")
    add("--close-after-stream", action="store_true", help="as llama-server does")
    values = vars(parser.parse_args(arguments))
    host, port = values.pop("host"), values.pop("port")
    return host, port, Options(**values)


async def serve(options: Options, *, host: str, port: int) -> None:
    """Listen until a signal comes; the first line on standard output says where."""
    engine = SimulatedEngine(options)
    await engine.start(host, port)
    sys.stdout.write(f"{engine.base_url}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopped.set)
    await stopped.wait()
    await engine.stop()


if __name__ == "__main__":
    _host, _port, _options = parse_arguments(sys.argv[1:])
    uvloop.run(serve(_options, host=_host, port=_port))
