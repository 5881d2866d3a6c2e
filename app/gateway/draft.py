"""A request on its way to admission: what it would hold, made smaller where that is allowed. Pure."""

from __future__ import annotations

from collections.abc import Callable

from app.catalog.snapshot import Model
from app.core.ids import AllowanceId, RequestId
from app.gateway.model import Ask, Principal
from app.gateway.tasks import Task
from app.gateway.terms import Drawn, Terms, holds_of, needs_of
from billing.journal.model import Admitted
from billing.metering.bounds import input_bound, output_bound
from billing.metering.model import Usage
from billing.quota.model import Denied, Need
from billing.rating.model import bound
from billing.rating.schedule import Pinned

Standing = Callable[[AllowanceId], tuple[int, int] | None]


class Draft:
    """What is known of a request before it is admitted.

    at_ms: its time, which pins its prices and periods.   input_bound: the most tokens that its input can
    be.   max_tokens: for each answer.   clamped_by: the limit that made that less than was asked for.
    """

    __slots__ = (
        "answers", "ask", "at_ms", "clamped_by", "drawn", "input_bound", "is_exact", "max_tokens", "model",
        "pinned", "principal", "request_id", "task", "terms",
    )  # fmt: skip

    def __init__(
        self,
        ask: Ask,
        *,
        request_id: RequestId,
        principal: Principal,
        model: Model,
        terms: Terms,
        pinned: Pinned,
        task: Task | None,
        at_ms: int,
    ) -> None:
        self.ask = ask
        self.request_id = request_id
        self.principal = principal
        self.model = model
        self.terms = terms
        self.pinned = pinned
        self.task = task
        self.at_ms = at_ms
        self.drawn = terms.drawn if task is None or task.drawn is None else (*terms.drawn, task.drawn)
        self.answers = ask.choices * ask.prompts
        self.input_bound = input_bound(
            len(ask.body),
            rendered_bytes=ask.rendered_bytes,
            prompts=ask.prompts,
            context_limit=model.context_limit,
            is_text=ask.is_text,
        )
        self.is_exact = False
        self.max_tokens = min(ask.max_tokens or model.default_output_tokens, model.max_output_tokens)
        self.clamped_by: str | None = None

    @property
    def echoed(self) -> int:
        """Output that is the prompt said again."""
        return self.input_bound * self.ask.choices if self.ask.echo else 0

    @property
    def output_bound(self) -> int:
        return output_bound(self.max_tokens, choices=self.answers) + self.echoed

    def needs(self) -> tuple[Need, ...]:
        """What it needs of all that it draws on."""
        output = self.output_bound
        cost = bound(input_tokens=self.input_bound, output_tokens=output, rates=self.pinned.rates)
        return needs_of(self.drawn, Usage(input=self.input_bound, output=output), cost_picos=cost)

    def record(self, needs: tuple[Need, ...]) -> Admitted:
        """The admission to be written to the journal."""
        key, tenant, model, ask = self.principal.key, self.principal.tenant, self.model, self.ask
        return Admitted(
            request_id=self.request_id,
            at_ms=self.at_ms,
            tenant_id=tenant.tenant_id,
            project_id=key.project_id,
            key_id=key.key_id,
            model_id=model.model_id,
            model_name=model.name,
            deployment_id=model.deployment_id,
            endpoint=ask.endpoint.value,
            streamed=ask.streamed,
            currency=tenant.currency,
            price_version_id=self.pinned.version_id,
            rates=self.pinned.rates,
            input_bound=self.input_bound,
            output_bound=self.output_bound,
            choices=ask.choices,
            prompts=ask.prompts,
            holds=holds_of(self.drawn, needs),
            task_id=self.task.task_id if self.task is not None else None,
        )

    def drawn_on(self, allowance_id: AllowanceId) -> Drawn:
        """What it draws on, by its allowance."""
        return next(each for each in self.drawn if each.allowance_id == allowance_id)

    def take_count(self, tokens: int) -> bool:
        """Take the exact number of input tokens; False if the bound was no more than that."""
        self.is_exact = True
        fewer = tokens < self.input_bound
        self.input_bound = min(self.input_bound, tokens)
        return fewer

    def might_fit(self, denied: Denied, *, clamps: bool) -> bool:
        """True if it could be covered, were its input as short as can be: worth counting it exactly."""
        each = self.drawn_on(denied.allowance_id)
        if not each.counts_input or self.is_exact or not self.ask.is_text:
            return False
        fewest = self.ask.prompts
        output = self.answers if clamps else self.output_bound - self.echoed
        cost = bound(input_tokens=fewest, output_tokens=output, rates=self.pinned.rates)
        (need,) = needs_of((each,), Usage(input=fewest, output=output), cost_picos=cost)
        return need.amount <= denied.available

    def lower_output(self, ceiling: int, *, by: str, clamps: bool) -> bool:
        """Keep the output of each answer to a ceiling; False if more was asked for and may not be clamped."""
        if self.max_tokens <= ceiling:
            return True
        if ceiling < 1 or (self.ask.max_tokens is not None and not clamps):
            return False
        if self.ask.max_tokens is not None:
            self.clamped_by = by
        self.max_tokens = ceiling
        return True

    def lower_context(self, ceiling: int, *, clamps: bool) -> bool:
        """Keep input and output of an answer together to a ceiling."""
        return self.lower_output(ceiling - self.input_bound, by="max_context", clamps=clamps)

    def clamp(self, denied: Denied, standing: Standing) -> bool:
        """Ask for as much output as the limits leave, at least one token; False if they leave none.

        denied: of the one that lacked.   standing: of the others, as far as it is known.
        """
        most, by = self.max_tokens, None
        for each, need in zip(self.drawn, self.needs(), strict=True):
            if each.allowance_id == denied.allowance_id:
                available = denied.available
            else:
                known = standing(each.allowance_id)
                available = need.amount if known is None else known[1]
            if need.amount > available:
                fits = self._fitting(each, available)
                if fits < most:
                    most, by = fits, each.name
        if by is None or most < 1:
            return False
        self.max_tokens, self.clamped_by = most, by
        return True

    def _fitting(self, drawn: Drawn, available: int) -> int:
        """The most tokens for each answer that `available` covers."""
        rates = self.pinned.rates
        match drawn.what:
            case "tokens":
                return (available - self.input_bound - self.echoed) // self.answers
            case "output_tokens":
                return (available - self.echoed) // self.answers
            case "picos" if rates.output:
                given = bound(input_tokens=self.input_bound, output_tokens=self.echoed, rates=rates)
                return (available - given) // (rates.output * self.answers)
        return 0
