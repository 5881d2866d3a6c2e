"""The protocol's laws over a network that never forgets; and every rule left out is noticed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.billing.quota.moves import MOVES, WEIGHTS, doomsday
from tests.billing.quota.mutants import MUTANTS
from tests.billing.quota.parts import Pick, Rules
from tests.billing.quota.scenarios import STORIES as STORIES_OF_LEASES
from tests.billing.quota.scenarios import Story
from tests.billing.quota.scenarios_of_rates import STORIES_OF_RATES
from tests.billing.quota.scenarios_of_terms import STORIES_OF_TERMS
from tests.billing.quota.world import World

LIMITS = (3, 10, 30)
STORIES = STORIES_OF_LEASES + STORIES_OF_RATES + STORIES_OF_TERMS


def explore(rules: Rules, *, seed: int, steps: int = 40) -> None:
    """One random life of the world, to its end."""
    draw = random.Random(seed)
    world = World(rules, [draw.choice(LIMITS) for _ in range(2)])
    world.birth()
    world.birth()
    for _ in range(steps):
        draw.choices(MOVES, WEIGHTS)[0](world, draw.randrange)
        world.check()
    doomsday(world, draw.randrange)
    world.check()


class Protocol(RuleBasedStateMachine):
    """The moves as rules; a failure shrinks to the fewest of them."""

    @initialize(limits=st.tuples(st.sampled_from(LIMITS), st.sampled_from(LIMITS)))
    def begin(self, limits: tuple[int, int]) -> None:
        self.world = World(Rules(), limits)
        self.world.birth()
        self.world.birth()

    @rule(data=st.data())
    def end_and_replay(self, data: st.DataObject) -> None:
        doomsday(self.world, picking(data))

    @invariant()
    def the_laws_hold(self) -> None:
        self.world.check()


def picking(data: st.DataObject) -> Pick:
    return lambda n: data.draw(st.integers(0, n - 1))


def as_rule(move: Callable[[World, Pick], None]) -> Callable[[Protocol, st.DataObject], None]:
    def act(self: Protocol, data: st.DataObject) -> None:
        move(self.world, picking(data))

    act.__name__ = move.__name__
    return rule(data=st.data())(act)


for _move in MOVES:
    setattr(Protocol, _move.__name__, as_rule(_move))

TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_protocol_tells_the_story(story: Story) -> None:
    story(Rules())


@pytest.mark.parametrize("block", range(4))
def test_the_laws_hold_in_random_lives(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        explore(Rules(), seed=seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_left_out_is_noticed(name: str) -> None:
    assert noticed(MUTANTS[name]), f"no test notices a protocol that {name}"


def noticed(rules: Rules) -> bool:
    """True if a story or one of a few hundred random lives fails."""
    lives: list[Callable[[], None]] = [lambda story=story: story(rules) for story in STORIES]  # type: ignore[misc]
    lives += [lambda seed=seed: explore(rules, seed=seed) for seed in range(200)]  # type: ignore[misc]
    return any(fails(life) for life in lives)


def fails(life: Callable[[], None]) -> bool:
    try:
        life()
    except AssertionError:
        return True
    return False
