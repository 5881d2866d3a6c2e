"""The bytes of vLLM's answers, shape for shape as vLLM 0.32.0 sends them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

FINGERPRINT = "steelyard-simulator"
CORE_DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
DONE = b"data: [DONE]\n\n"

_ASCII = (
    "The",
    " scale",
    " in",
    " the",
    " market",
    " weighs",
    " every",
    " token",
    " once",
    ".",
    "\n",
    "Then",
)
_MULTIBYTE = ("秤", "と", " é", " 🙂", "平", " ß", "衡", " naïve", "👩‍⚖️", "。", " Ω", "\n")
_encode = msgspec.json.encode


def _inner(text: str) -> str:
    return _encode(text).decode()[1:-1]


_WORDS = {False: tuple(map(_inner, _ASCII)), True: tuple(map(_inner, _MULTIBYTE))}


@lru_cache(maxsize=4096)
def text_of(first: int, count: int, *, multibyte: bool) -> str:
    """Tokens `first … first + count - 1` of the endless text that every answer begins, JSON-escaped."""
    words = _WORDS[multibyte]
    if count == 1:
        return words[first % len(words)]
    return "".join([words[i % len(words)] for i in range(first, first + count)])


@dataclass(frozen=True, slots=True)
class Answer:
    """What all chunks of one answer share.

    prompt_tokens: of all prompts together.   stops: it ends by itself, so the last token of each
    choice is an end token without text.
    """

    request_id: str
    chat: bool
    model: str
    created: int
    choices: int
    prompt_tokens: int
    tokens: int
    stops: bool
    multibyte: bool = False
    cached: int | None = 0

    @property
    def completion_tokens(self) -> int:
        return self.tokens * self.choices

    def text(self, index: int, *, first: int, count: int) -> str:
        """The JSON-escaped text of some tokens of one choice."""
        last = self.tokens - 1 if self.stops else self.tokens
        return text_of(first + index, max(0, min(first + count, last) - first), multibyte=self.multibyte)


def role_chunk(answer: Answer, index: int, *, continuous: bool) -> bytes:
    """A chat stream's first chunk of a choice."""
    usage = _running_usage(answer, 0) if continuous else ""
    return _event(
        answer,
        f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}',
        rest=usage + ',"prompt_token_ids":null,"prompt_text":null',
    )


def token_chunk(
    answer: Answer, index: int, *, first: int, count: int, continuous: bool, last_word: bool = False
) -> bytes:
    """Some tokens of one choice; with its finish reason if they are its last.

    continuous: with the running usage, which counts this choice alone, as in vLLM.   last_word: the
    fingerprint goes with the very last chunk if no usage chunk follows.
    """
    done = first + count >= answer.tokens
    reason = ("stop" if answer.stops else "length") if done else None
    finish = f'"{reason}"' if reason else "null"
    text = answer.text(index, first=first, count=count)
    if answer.chat:
        stop = ',"stop_reason":null' if done else ""
        choice = (
            f'{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":null,'
            f'"finish_reason":{finish}{stop},"token_ids":null}}'
        )
    else:
        choice = (
            f'{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":{finish},'
            f'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}'
        )
    rest = _running_usage(answer, first + count) if continuous else ""
    return _event(answer, choice, rest=rest + (f',"system_fingerprint":"{FINGERPRINT}"' if last_word else ""))


def usage_chunk(answer: Answer) -> bytes:
    """The chunk without choices that ends a stream whose client asked for usage."""
    details = ""
    if answer.cached is not None:
        created = ',"created_cache_tokens":0' if answer.chat else ""
        details = f',"prompt_tokens_details":{{"cached_tokens":{answer.cached}{created}}}'
    usage = f',"usage":{{{_counts(answer, answer.completion_tokens)}{details}}}'
    return _event(answer, "", rest=f'{usage},"system_fingerprint":"{FINGERPRINT}"')


def error_frame(message: str = CORE_DIED) -> bytes:
    """The error that vLLM sends within a stream; its JSON has spaces, unlike all else."""
    fields = f'"message": "{message}", "type": "InternalServerError", "param": null, "code": 500'
    return f'data: {{"error": {{{fields}}}}}\n\n'.encode()


def error_body(message: str, *, kind: str, status: int, param: str | None = None) -> bytes:
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def json_body(answer: Answer, *, usage: bool = True) -> bytes:
    """The whole answer of a request that isn't streamed."""
    choices = ",".join(_choice(answer, index) for index in range(answer.choices))
    head = _common(answer, choices, kind="chat.completion" if answer.chat else "text_completion")
    details = "null"
    if answer.cached is not None:
        created = "0" if answer.chat else "null"
        details = (
            f'{{"cached_tokens":{answer.cached},"created_cache_tokens":{created},"multimodal_tokens":null}}'
        )
    counts = f'{_counts(answer, answer.completion_tokens)},"prompt_tokens_details":{details}'
    whole = f'{{{counts},"completion_tokens_details":null}}' if usage else "null"
    prompt = '"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,' if answer.chat else ""
    return (
        f'{head},"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{whole},{prompt}'
        '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    ).encode()


def _choice(answer: Answer, index: int) -> str:
    text = answer.text(index, first=0, count=answer.tokens)
    finish = f'"finish_reason":"{"stop" if answer.stops else "length"}","stop_reason":null,"token_ids":null'
    if answer.chat:
        message = (
            f'{{"role":"assistant","content":"{text}","refusal":null,"annotations":null,"audio":null,'
            '"function_call":null,"reasoning":null}'
        )
        return f'{{"index":{index},"message":{message},"logprobs":null,{finish},"routed_experts":null}}'
    return (
        f'{{"index":{index},"text":"{text}","logprobs":null,{finish},"prompt_logprobs":null,'
        '"prompt_token_ids":null,"routed_experts":null}'
    )


def _event(answer: Answer, choices: str, *, rest: str) -> bytes:
    kind = "chat.completion.chunk" if answer.chat else "text_completion"
    return f"data: {_common(answer, choices, kind=kind)}{rest}}}\n\n".encode()


def _common(answer: Answer, choices: str, *, kind: str) -> str:
    return (
        f'{{"id":"{answer.request_id}","object":"{kind}","created":{answer.created},'
        f'"model":"{answer.model}","choices":[{choices}]'
    )


def _running_usage(answer: Answer, tokens: int) -> str:
    details = ',"completion_tokens_details":null' if answer.chat else ""
    return f',"usage":{{{_counts(answer, tokens)}{details}}}'


def _counts(answer: Answer, tokens: int) -> str:
    prompt = answer.prompt_tokens
    return f'"prompt_tokens":{prompt},"total_tokens":{prompt + tokens},"completion_tokens":{tokens}'
