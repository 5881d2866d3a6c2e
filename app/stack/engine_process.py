"""llama.cpp's own server as a process: `python -m app.stack.engine_process --model FILE --port PORT …`.

It is a child of its own so that a crash of the engine is the engine's alone.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def parameters(
    *, model: str, host: str, port: int, alias: str, slots: int, context: int, threads: int
) -> object:
    """The server's parameters.   slots: parallel requests.   context: tokens of each slot."""
    chosen = xllamacpp.CommonParams()
    chosen.model.path = model
    chosen.model_alias = {alias}
    chosen.hostnames = [host]
    chosen.port = port
    # llama.cpp divides one context among the slots, unless they share it (and then starve each other).
    chosen.n_ctx = context * slots
    chosen.n_parallel = slots
    chosen.kv_unified = False
    chosen.cpuparams.n_threads = threads
    chosen.cpuparams_batch.n_threads = threads
    chosen.endpoint_metrics = True
    chosen.endpoint_slots = True
    chosen.endpoint_props = True
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="app.stack.engine_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--slots", default=4, type=int)
    parser.add_argument("--context", default=4096, type=int)
    parser.add_argument("--threads", default=2, type=int)
    asked = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(parameters(**vars(asked)))
    print(f"engine listens on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
