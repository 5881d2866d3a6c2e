"""The mutants: each breaks one rule by which every token counts once.

A patch names the shortest text that carries the rule, so that it survives changes around it; a test says
when one no longer fits.
"""

from __future__ import annotations

from tests.mutation.patch import Mutant, Patch

_SPLIT = """await self._connection.exec_driver_sql("COMMIT")
        await self._connection.exec_driver_sql("BEGIN")
        """
_SET_ASIDE = "tests/billing/journal/test_set_aside.py::"
_DAMAGE = "tests/billing/journal/test_damage.py::"

NONE = Mutant("none", "nothing is wrong", ())
"""The product as it is."""

ALL = (
    Mutant(
        "settles_twice",
        "a request has two settlements, which differ",
        (
            Patch(
                "app.gateway.settle",
                "        desk.journal.settle(settled, durable)\n",
                "        desk.journal.settle(settled, durable)\n"
                "        desk.journal.append(msgspec.structs.replace(settled, at_ms=settled.at_ms + 1))\n",
            ),
        ),
    ),
    Mutant(
        "ends_before_it_is_written",
        "the last bytes leave before the settlement is in the journal",
        (
            Patch(
                "app.gateway.settle",
                "        desk.journal.settle(settled, durable)\n",
                "        loop = asyncio.get_running_loop()\n"
                "        loop.call_soon(durable, True)\n"
                "        loop.call_later(0.05, desk.journal.settle, settled, lambda _: None)\n",
            ),
        ),
        stirred_by="gateway",
    ),
    Mutant(
        "ends_in_the_turn_before_it_is_written",
        "the last bytes leave a callback before the settlement is in the journal",
        (
            Patch(
                "app.gateway.settle",
                "        desk.journal.settle(settled, durable)\n",
                "        asyncio.get_running_loop().call_soon(durable, True)\n"
                "        desk.journal.settle(settled, lambda _: None)\n",
            ),
        ),
        stirred_by="nothing",
        dies_at=("gateway-0/write", "gateway-0/torn_first"),
    ),
    Mutant(
        "never_syncs",
        "settlements count as durable once they are written",
        (
            Patch(
                "billing.journal.writer",
                "self._syncer.add(waiting)",
                "answer([(each, True) for each in waiting])",
            ),
        ),
        stirred_by="power",
        tests=("tests/billing/journal/test_writer.py::test_a_disk_that_can_not_sync_is_not_trusted_again",),
    ),
    Mutant(
        "posts_what_is_not_durable",
        "the settler posts what it has not synced itself",
        (
            Patch(
                "billing.journal.tail",
                "            self._sync(self._descriptor)\n",
                "            pass\n",
            ),
        ),
        stirred_by="nothing",
        tests=(_DAMAGE + "test_after_a_failed_sync_nothing_is_read_but_from_a_durable_copy",),
    ),
    Mutant(
        "admits_without_a_record",
        "the admission is not journalled",
        (Patch("app.gateway.admission", "        self._journal.append(record)\n", ""),),
    ),
    Mutant(
        "sums_usage",
        "reports of usage are added up instead of the last one counting",
        (
            Patch(
                "billing.metering.convert",
                "completion=self.completion if later.completion is None else later.completion",
                "completion=self.completion if later.completion is None else later.completion"
                " + (self.completion or 0)",
            ),
        ),
    ),
    Mutant(
        "counts_a_prompt_for_each_choice",
        "the prompt of a request with n answers is counted n times",
        (Patch("billing.metering.gauge", "group = choice // self._choices_per_prompt", "group = choice"),),
        stirred_by="choices",
    ),
    Mutant(
        "prices_at_the_settlement",
        "a request costs what is in force at its end, not what was pinned at its admission",
        (
            Patch(
                "app.gateway.admission",
                "        self._snapshot = snapshot\n",
                "        self._snapshot = snapshot\n        leases.admission = self\n",
            ),
            Patch(
                "app.gateway.settle",
                "cost_picos = cost(charged, admission.record.rates)",
                "pinned_late = desk.leases.admission._pin(admission.principal, admission.model)\n"
                "        cost_picos = cost(charged, pinned_late.rates)",
            ),
        ),
        stirred_by="price",
    ),
    Mutant(
        "bills_the_lost",
        "what a dead process was working on is billed",
        (Patch("billing.metering.policy", "Outcome.LOST: _FREE", "Outcome.LOST: _COUNTED"),),
        stirred_by="gateway",
    ),
    Mutant(
        "forgets_progress",
        "a lost request is settled as if nobody had counted it",
        (Patch("billing.journal.join", "open_.furthest = reading", "pass"),),
        stirred_by="nothing",
        tests=(
            "tests/billing/journal/test_settler.py::test_a_dead_process_request_is_lost_with_its_furthest_reading",
        ),
    ),
    Mutant(
        "keeps_the_hold",
        "what a settlement frees is never admitted from again",
        (Patch("billing.quota.leases", "            lease.free += need.amount - covered\n", ""),),
    ),
    Mutant(
        "returns_before_it_is_durable",
        "what a settlement frees is returned before the settlement is on the disk",
        (
            Patch(
                "billing.quota.leases",
                "            lease.pending += need.amount - covered\n",
                "",
            ),
            Patch("billing.quota.leases", "lease.pending -= amount\n", "lease.pending -= 0\n"),
        ),
        stirred_by="nothing",
        tests=(
            "tests/billing/quota/test_leases.py::test_what_a_settlement_frees_is_admitted_from_at_once_and_returned_when_durable",
        ),
    ),
    Mutant(
        "resumes_too_far",
        "a restarted settler skips requests that were still open",
        (
            Patch(
                "billing.journal.course",
                "return Position(posted, min([posted, *waiting]))",
                "return Position(posted, posted)",
            ),
        ),
        stirred_by="settler",
        tests=(
            "tests/billing/journal/test_settler.py::test_a_restarted_settler_reads_again_from_the_oldest_open_request",
        ),
    ),
    Mutant(
        "advances_before_it_posts",
        "the position in the journal is committed before the events",
        (
            Patch(
                "billing.journal.posting",
                "    poster = _Poster(connection,",
                '    await connection.exec_driver_sql("COMMIT")\n'
                '    await connection.exec_driver_sql("BEGIN")\n'
                "    poster = _Poster(connection,",
            ),
        ),
        stirred_by="statement",
        tests=(
            "tests/billing/journal/test_halving.py::test_a_settler_killed_anywhere_in_the_halving_posts_and_parks_each_record_once",
        ),
    ),
    Mutant(
        "rolls_up_apart",
        "roll-ups are summed in a transaction of their own",
        (
            Patch("billing.journal.posting", "        await tally.roll_up(self._connection)\n", ""),
            Patch(
                "billing.journal.posting",
                "        money = self._facts.allowances\n",
                f"        {_SPLIT}await tally.roll_up(self._connection)\n"
                "        money = self._facts.allowances\n",
            ),
        ),
        stirred_by="statement",
    ),
    Mutant(
        "spends_apart",
        "leases are settled in a transaction of their own",
        (
            Patch(
                "billing.journal.posting",
                "        unleased = await authority.post(",
                f"        {_SPLIT}unleased = await authority.post(",
            ),
        ),
        stirred_by="statement",
    ),
    Mutant(
        "updates_on_conflict",
        "an event that is there already is taken for a new one",
        (
            Patch(
                "billing.journal.posting",
                "ON CONFLICT (request_id) DO NOTHING RETURNING request_id",
                "ON CONFLICT (request_id) DO UPDATE SET posted_at = EXCLUDED.posted_at RETURNING request_id",
            ),
        ),
        stirred_by="replay",
    ),
    Mutant(
        "forgets_the_payload_hash",
        "a second settlement that says otherwise passes for a repeat",
        (Patch("billing.journal.conflicts", "!= charge.payload_hash", "== b''"),),
        stirred_by="nothing",
        tests=(_SET_ASIDE + "test_a_second_settlement_that_says_otherwise_is_a_conflict_not_a_charge",),
    ),
    Mutant(
        "parks_without_holds",
        "what is set aside holds nothing of its wallet",
        (Patch("billing.journal.rows", '"holds": holds,', '"holds": [],'),),
        stirred_by="nothing",
        tests=(_SET_ASIDE + "test_each_flawed_record_is_parked_and_every_other_one_is_posted",),
    ),
    Mutant(
        "takes_any_tail",
        "bytes that no writer wrote are passed over as if the file ended there",
        (
            Patch(
                "billing.journal.tail",
                "        if tail is not Tail.CLEAN:\n            self._look_beyond(tail)\n",
                "",
            ),
        ),
        stirred_by="nothing",
        tests=(_DAMAGE + "test_a_corrupt_frame_costs_no_other_record_and_keeps_its_incarnation_open",),
    ),
    Mutant(
        "closes_before_it_posts",
        "a dead process' leases are returned before the end of its journal is posted",
        (
            Patch(
                "billing.journal.settler",
                "        before = course.events\n        await course.catch_up()\n",
                "        before = course.events\n"
                "        if not await self._desk.run_blocking(course.tail.try_bury):\n"
                "            await course.catch_up()\n",
            ),
        ),
        stirred_by="gateway",
    ),
    Mutant(
        "books_the_wrong_way",
        "usage puts money into the wallet",
        (
            Patch(
                "billing.ledger.posting",
                "{AccountKind.WALLET: -cost, AccountKind.REVENUE: cost}",
                "{AccountKind.WALLET: cost, AccountKind.REVENUE: -cost}",
            ),
        ),
    ),
)

REDUCED = ("settles_twice", "sums_usage", "ends_before_it_is_written")
"""Those that every run of the tests hunts."""
