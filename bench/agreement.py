"""Whole streams of every form through the gateway: what is billed beside the engine's own usage and counter.

`make bench-agreement` asks the embedded llama-server, `ARGS="--engine vllm --url http://HOST:PORT"` any
running engine too. A form that the engine refuses must be billed nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.counters import EngineCounter
from bench.hangup import Seen
from bench.service import Service, running

RESULTS = Path(__file__).parent / "results"
_MESSAGES = [{"role": "user", "content": "How do I weigh a token, and who may check the scale?"}]
_FUNCTION = {
    "name": "weigh",
    "description": "Weigh goods",
    "parameters": {
        "type": "object",
        "properties": {"grams": {"type": "integer"}},
        "required": ["grams"],
        "additionalProperties": False,
    },
}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_CALL = {"type": "function", "function": {"name": "weigh"}}
_CHAT: Mapping[str, Any] = {"messages": _MESSAGES, "max_tokens": 40}
_TEXT: Mapping[str, Any] = {"prompt": "A market balance", "max_tokens": 40}

FORMS: Mapping[str, Mapping[str, Any]] = {
    "chat": _CHAT,
    "chat, two choices": {**_CHAT, "n": 2},
    "chat, four choices": {**_CHAT, "n": 4, "temperature": 1.2},
    "chat, tools offered": {**_CHAT, "tools": _TOOLS},
    "chat, a tool named": {**_CHAT, "tools": _TOOLS, "tool_choice": _CALL},
    "chat, a stop string": {**_CHAT, "stop": ["e", "a"]},
    "chat, reasoning off": {**_CHAT, "chat_template_kwargs": {"enable_thinking": False}},
    "chat, log probabilities": {**_CHAT, "logprobs": True, "top_logprobs": 2},
    "chat, one token": {**_CHAT, "max_tokens": 1},
    "chat, the same prompt again": _CHAT,
    "completion": _TEXT,
    "completion, two choices": {**_TEXT, "n": 2},
    "completion, two prompts": {**_TEXT, "prompt": ["One", "Two merchants"]},
    "completion, a stop string": {**_TEXT, "stop": "e"},
    "completion, echo": {**_TEXT, "echo": True},
}


async def compare(service: Service, counter: EngineCounter, *, form: Mapping[str, Any]) -> dict[str, Any]:
    """One stream to its end: the client's usage, the bill, the engine's counter, and whether they agree."""
    await counter.idle_after_s()
    before = await counter.generated()
    seen = await service.ask({**form, "stream_options": {"include_usage": True}})
    await counter.idle_after_s()
    generated = await counter.generated() - before
    told = await service.explain(seen.request_id)
    billed = {line["meter"]: line["tokens"] for line in told["charge"]["lines"]}
    found = {"status": seen.status, "outcome": told["outcome"], "source": told["usage"]["source"]}
    found |= {"usage": seen.usage, "billed": billed, "engine_generated": generated, "flags": told["flags"]}
    return {**found, "agrees": _agrees(seen, billed, generated=generated)}


def _agrees(seen: Seen, billed: Mapping[str, int], *, generated: int) -> bool:
    if seen.status != 200:
        return not billed and not generated
    if seen.usage is None:
        return False
    prompt = sum(billed.get(meter, 0) for meter in ("input", "input_cached", "input_cache_write"))
    output = billed.get("output", 0)
    usage: dict[str, int] = {name: seen.usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return prompt == usage["prompt_tokens"] and output == usage["completion_tokens"] == generated


async def measure(engine_url: str | None) -> dict[str, Any]:
    """What came of each form, by name."""
    async with running(engine_url=engine_url) as service:
        counter = EngineCounter(service.engine_url)
        try:
            return {name: await compare(service, counter, form=form) for name, form in FORMS.items()}
        finally:
            await counter.close()


async def measure_all(asked: argparse.Namespace) -> dict[str, Any]:
    """Figures by engine."""
    found = {asked.engine: await measure(asked.url)} if asked.url else {}
    return {**found, "llama-server": await measure(None)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.agreement", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="ask the engine that runs at this address, too")
    parser.add_argument("--engine", default="vllm", help="how to call it in the results")
    parser.add_argument("--output", type=Path, default=RESULTS / "agreement.json")
    asked = parser.parse_args()
    engines = asyncio.run(measure_all(asked))
    result = {
        "benchmark": "agreement",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "engines": engines,
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(engines, indent=2))
    wrong = [
        f"{engine}: {name}" for engine, of in engines.items() for name, f in of.items() if not f["agrees"]
    ]
    if wrong:
        sys.exit(f"bill and engine differ: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
