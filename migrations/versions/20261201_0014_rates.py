"""Rates and concurrency in the authority's functions.

A rate's bucket is `level_micros`, in millionths, as it was at `level_at`. What is lent of it is out of the
bucket; what is consumed is reported by the message and never posted. A rate's lease ends by time, so its rows
come and go: `epoch`, the number of the message that began it, tells one from the next.
"""

from __future__ import annotations

from importlib import import_module

from migrations.sql import run

revision = "20261201_0014"
down_revision = "20261201_0013"
branch_labels = None
depends_on = None

LEASES = """
-- epoch: of a rate's lease, the number of the message that began it; else 0. heard_at: when its process last named
-- it. Only a rate's lease may be removed: what it had out counts as consumed.
ALTER TABLE lease
  ADD COLUMN epoch bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0),
  ADD COLUMN heard_at timestamptz,
  ADD CONSTRAINT lease_epoch CHECK ((epoch > 0) = (heard_at IS NOT NULL));
DROP TRIGGER stands ON lease;
CREATE TRIGGER stands BEFORE DELETE ON lease FOR EACH ROW WHEN (OLD.epoch = 0) EXECUTE FUNCTION forbid_change();
"""

BUCKET = """
-- How long a rate's lease lives after its process last named it: the 5 seconds that it is used for, and a margin.
CREATE FUNCTION quota_term() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '6 seconds' $$;

-- A bucket that fills from p_at until p_until at p_rate a minute, never above p_room. Time that gave less than a
-- millionth is kept for the next time. Without a step of the clock back: p_until before p_at fills nothing.
CREATE FUNCTION quota_refill(
  p_level numeric, p_at timestamptz, p_until timestamptz, p_rate numeric, p_room numeric,
  OUT r_level numeric, OUT r_at timestamptz
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_gained numeric;
BEGIN
  r_at := greatest(p_at, p_until);
  v_gained := div(greatest(p_rate, 0) * (extract(epoch FROM r_at - p_at) * 1000000), 60);
  IF p_level + v_gained >= p_room THEN
    r_level := greatest(p_room, 0);
  ELSE
    r_level := p_level + v_gained;
    IF p_rate > 0 THEN
      r_at := p_at + ceil(v_gained * 60 / p_rate)::double precision * interval '1 microsecond';
    END IF;
  END IF;
END $$;

-- A rate's bucket as it is at p_now. What a lease that ended by then had out was consumed when it ended.
CREATE FUNCTION quota_level(p_allowance text, p_now timestamptz, OUT r_level numeric, OUT r_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_rate allowance;
  v_out numeric;
  v_ended record;
BEGIN
  SELECT * INTO v_rate FROM allowance WHERE id = p_allowance;
  r_level := v_rate.level_micros;
  r_at := v_rate.level_at;
  v_out := coalesce((SELECT sum(granted - settled - returned) FROM lease WHERE allowance_id = p_allowance), 0);
  FOR v_ended IN
    SELECT granted - settled - returned AS amount, heard_at + quota_term() AS ended FROM lease
    WHERE allowance_id = p_allowance AND heard_at <= p_now - quota_term() ORDER BY heard_at
  LOOP
    SELECT f.r_level, f.r_at INTO r_level, r_at
    FROM quota_refill(r_level, r_at, v_ended.ended, v_rate.limit_amount, 1000000 * (v_rate.burst - v_out)) AS f;
    v_out := v_out - v_ended.amount;
  END LOOP;
  SELECT f.r_level, f.r_at INTO r_level, r_at
  FROM quota_refill(r_level, r_at, p_now, v_rate.limit_amount, 1000000 * (v_rate.burst - v_out)) AS f;
END $$;

-- Bring those of these locked allowances that are rates up to p_now, and close the leases that ended.
CREATE FUNCTION quota_turn(p_allowances text[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_rates text[];
  v_ended text[];
BEGIN
  v_rates := array(SELECT id FROM allowance WHERE id = ANY (p_allowances) AND window_kind = 'minute');
  IF v_rates = '{}' THEN
    RETURN;
  END IF;
  v_ended := array(
    SELECT DISTINCT allowance_id FROM lease
    WHERE allowance_id = ANY (v_rates) AND heard_at <= p_now - quota_term());
  UPDATE allowance a SET level_micros = f.r_level, level_at = f.r_at
  FROM (
    SELECT r.id, r.level_micros, r.level_at, r.limit_amount, r.burst - coalesce((
      SELECT sum(l.granted - l.settled - l.returned) FROM lease l WHERE l.allowance_id = r.id), 0) AS room
    FROM allowance r WHERE r.id = ANY (v_rates) AND r.id <> ALL (v_ended)) AS s,
    quota_refill(s.level_micros, s.level_at, p_now, s.limit_amount, 1000000 * s.room) AS f
  WHERE a.id = s.id;
  IF v_ended <> '{}' THEN
    UPDATE allowance a SET level_micros = now.r_level, level_at = now.r_at
    FROM unnest(v_ended) AS e(id), quota_level(e.id, p_now) AS now WHERE a.id = e.id;
    DELETE FROM lease WHERE allowance_id = ANY (v_ended) AND heard_at <= p_now - quota_term();
  END IF;
END $$;
"""

READINGS = """
-- What can be lent, as one snapshot sees it: A = L - S - outstanding; of a rate, what its bucket has.
CREATE OR REPLACE FUNCTION quota_available(p_allowance text) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN a.window_kind = 'minute' THEN div(a.level_micros, 1000000)
    ELSE a.limit_amount - a.spent - coalesce((
      SELECT sum(l.granted - l.settled - l.returned) FROM lease l
      WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0), 0) END
  FROM allowance a WHERE a.id = p_allowance
$$;

-- The most that there can be, if all who hold some gave it back.
CREATE FUNCTION quota_unspent(p_allowance text) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN a.window_kind = 'minute' THEN div(a.level_micros, 1000000) + coalesce((
      SELECT sum(l.granted - l.settled - l.returned) FROM lease l WHERE l.allowance_id = a.id), 0)
    ELSE a.limit_amount - a.spent END
  FROM allowance a WHERE a.id = p_allowance
$$;

DROP FUNCTION quota_give;
CREATE FUNCTION quota_give(p_incarnation text, p_sequence bigint, p_allowance text, p_amount numeric)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE allowance SET level_micros = level_micros - p_amount * 1000000
  WHERE id = p_allowance AND window_kind = 'minute';
  INSERT INTO lease (allowance_id, incarnation_id, granted, epoch, heard_at)
  VALUES (p_allowance, p_incarnation, p_amount,
    CASE WHEN FOUND THEN p_sequence ELSE 0 END, CASE WHEN FOUND THEN clock_timestamp() END)
  ON CONFLICT (allowance_id, incarnation_id)
  DO UPDATE SET granted = lease.granted + EXCLUDED.granted, heard_at = EXCLUDED.heard_at;
END $$;
"""

SYNC = """
DROP FUNCTION quota_ask;
-- Whole needs, each all of its allowances or none: rows of one p_ask belong together, served in that order.
-- Returns for each the allowances that lack; none: given. What there is, is read once, and what is given written
-- once, however many ask: a row that is written anew for each of them has ever longer chains of versions to read.
CREATE FUNCTION quota_ask(
  p_incarnation text, p_sequence bigint, p_ask integer[], p_ids text[], p_amounts numeric[]
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_ids text[];
  v_left numeric[];
  v_unspent numeric[];
  v_given numeric[];
  v_recalled text[] := '{}';
  v_fresh text[];
  v_ask record;
  v_lacking text[];
  v_is_hopeless boolean;
  v_verdicts jsonb := '[]';
BEGIN
  SELECT array_agg(n.id), array_agg(greatest(quota_available(n.id), 0)),
    array_agg(greatest(quota_unspent(n.id), 0)), array_agg(0::numeric)
  INTO v_ids, v_left, v_unspent, v_given
  FROM (SELECT DISTINCT id FROM unnest(p_ids) AS id) AS n;
  FOR v_ask IN
    SELECT array_agg(array_position(v_ids, n.id) ORDER BY n.id) AS places,
      array_agg(n.amount ORDER BY n.id) AS amounts
    FROM unnest(p_ask, p_ids, p_amounts) AS n(ask, id, amount) GROUP BY n.ask ORDER BY n.ask
  LOOP
    v_lacking := '{}';
    v_is_hopeless := false;
    FOR i IN 1..cardinality(v_ask.places) LOOP
      IF v_ask.amounts[i] > v_left[v_ask.places[i]] THEN
        v_lacking := v_lacking || v_ids[v_ask.places[i]];
        -- What is spent leaves too little: whatever holders gave back, it would not be covered.
        v_is_hopeless := v_is_hopeless OR v_ask.amounts[i] > v_unspent[v_ask.places[i]];
      END IF;
    END LOOP;
    IF v_lacking = '{}' THEN
      FOR i IN 1..cardinality(v_ask.places) LOOP
        v_left[v_ask.places[i]] := v_left[v_ask.places[i]] - v_ask.amounts[i];
        v_given[v_ask.places[i]] := v_given[v_ask.places[i]] + v_ask.amounts[i];
      END LOOP;
    ELSIF NOT v_is_hopeless THEN
      v_recalled := v_recalled || v_lacking;
    END IF;
    v_verdicts := v_verdicts || jsonb_build_array(to_jsonb(v_lacking));
  END LOOP;
  PERFORM quota_give(p_incarnation, p_sequence, n.id, n.amount)
  FROM unnest(v_ids, v_given) AS n(id, amount) WHERE n.amount > 0;
  IF v_recalled <> '{}' THEN
    -- Holders who know of a recall for half a second more, longer than any asker waits, need no new word.
    v_fresh := array(
      SELECT id FROM allowance WHERE id = ANY (v_recalled)
        AND (recall_until IS NULL OR recall_until < clock_timestamp() + interval '500 milliseconds'));
    UPDATE allowance SET recall_until = clock_timestamp() + interval '1 second' WHERE id = ANY (v_recalled);
    PERFORM quota_tell(v_fresh);
  END IF;
  RETURN v_verdicts;
END $$;

-- What a message says of leases: totals of an epoch that has ended touch nothing. Returns whose returns grew.
CREATE FUNCTION quota_hear(
  p_incarnation text, p_ids text[], p_returned numeric[], p_consumed numeric[], p_epochs bigint[],
  p_heard_at timestamptz
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_grown text[];
BEGIN
  WITH said AS (
    SELECT l.allowance_id AS id, l.returned AS before, m.total, m.consumed
    FROM unnest(p_ids, p_returned, p_consumed, p_epochs) AS m(id, total, consumed, epoch)
    JOIN lease l ON l.allowance_id = m.id AND l.incarnation_id = p_incarnation AND l.epoch = m.epoch
    WHERE m.total > l.returned OR l.epoch > 0
  ), heard AS (
    UPDATE lease l SET returned = greatest(l.returned, s.total),
      settled = CASE WHEN l.epoch > 0 THEN greatest(l.settled, s.consumed) ELSE l.settled END,
      heard_at = CASE WHEN l.epoch > 0 THEN coalesce(p_heard_at, l.heard_at) END
    FROM said s WHERE l.allowance_id = s.id AND l.incarnation_id = p_incarnation
    RETURNING l.allowance_id AS id, l.returned - s.before AS grown, l.epoch
  ), filled AS (
    UPDATE allowance a SET level_micros = a.level_micros + h.grown * 1000000
    FROM heard h WHERE a.id = h.id AND h.epoch > 0 AND h.grown > 0)
  SELECT array_agg(id) INTO v_grown FROM heard WHERE grown > 0;
  RETURN v_grown;
END $$;

-- What background renewals are given: nothing under recall.
CREATE FUNCTION quota_renew(p_incarnation text, p_sequence bigint, p_ids text[], p_wants numeric[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH given AS (
    SELECT s.id, s.is_rate, least(s.want, quota_share(s.available)) AS amount
    FROM (
      SELECT a.id, m.want, a.window_kind = 'minute' AS is_rate,
        CASE WHEN a.window_kind = 'minute' THEN div(a.level_micros, 1000000)
          ELSE a.limit_amount - a.spent - coalesce((
            SELECT sum(l.granted - l.settled - l.returned) FROM lease l
            WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0), 0) END AS available
      FROM unnest(p_ids, p_wants) AS m(id, want) JOIN allowance a USING (id)
      WHERE m.want > 0 AND (a.recall_until IS NULL OR a.recall_until <= clock_timestamp())) AS s
    WHERE s.available >= 4
  ), taken AS (
    UPDATE allowance a SET level_micros = a.level_micros - g.amount * 1000000
    FROM given g WHERE a.id = g.id AND g.is_rate)
  INSERT INTO lease (allowance_id, incarnation_id, granted, epoch, heard_at)
  SELECT g.id, p_incarnation, g.amount, CASE WHEN g.is_rate THEN p_sequence ELSE 0 END,
    CASE WHEN g.is_rate THEN clock_timestamp() END
  FROM given g
  ON CONFLICT (allowance_id, incarnation_id)
  DO UPDATE SET granted = lease.granted + EXCLUDED.granted, heard_at = EXCLUDED.heard_at;
END $$;

DROP FUNCTION quota_sync;
-- The only message of a process. p_ids, p_returned, p_wants: leases with their cumulative totals returned and
-- what a renewal wants; p_consumed, p_epochs: of rates, what was consumed, and of which lease that is said.
-- p_ask, p_ask_ids, p_ask_amounts: whole needs, rows of one p_ask belong together (0, 1, …).
-- Amounts in the answer are strings: a JSON number might be read as a float. All is looked up by keys, so a plan is
-- made once and never scans: planning anew for each array would cost more than all the rest.
CREATE FUNCTION quota_sync(
  p_incarnation text, p_sequence bigint, p_ids text[], p_returned numeric[], p_wants numeric[],
  p_ask integer[], p_ask_ids text[], p_ask_amounts numeric[], p_consumed numeric[], p_epochs bigint[]
) RETURNS jsonb LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  v_incarnation incarnation;
  v_is_fresh boolean;
  v_now timestamptz;
  v_verdicts jsonb;
BEGIN
  SELECT * INTO v_incarnation FROM incarnation WHERE id = p_incarnation FOR UPDATE;
  IF NOT FOUND OR v_incarnation.status = 'closed' THEN
    RETURN jsonb_build_object('sequence', p_sequence, 'closed', true);
  END IF;
  PERFORM FROM allowance WHERE id = ANY (p_ids || p_ask_ids) ORDER BY id FOR UPDATE;
  v_now := clock_timestamp();
  v_is_fresh := p_sequence > v_incarnation.last_sequence;

  PERFORM quota_turn(p_ids || p_ask_ids, v_now);
  PERFORM quota_tell_askers(quota_hear(
    p_incarnation, p_ids, p_returned, p_consumed, p_epochs, CASE WHEN v_is_fresh THEN v_now END));

  IF v_is_fresh THEN
    v_verdicts := quota_ask(p_incarnation, p_sequence, p_ask, p_ask_ids, p_ask_amounts);
    PERFORM quota_renew(p_incarnation, p_sequence, p_ids, p_wants);
    UPDATE incarnation SET last_sequence = p_sequence, synced_at = v_now WHERE id = p_incarnation;
  END IF;

  RETURN jsonb_build_object('sequence', p_sequence, 'asks', v_verdicts, 'leases', coalesce((
    SELECT jsonb_agg(jsonb_build_array(
      f.id, f.granted::text, f.returned::text, f.limit_amount::text, (f.limit_amount - f.unspent)::text,
      f.available::text, CASE WHEN f.available < 0 THEN 1000
        ELSE greatest(ceil(extract(epoch FROM f.recall_until - clock_timestamp()) * 1000), 0)::integer END,
      f.settled::text) || f.of_rate)
    FROM (
      SELECT a.id, a.limit_amount, a.recall_until, coalesce(l.granted, 0) AS granted,
        coalesce(l.returned, 0) AS returned, coalesce(l.settled, 0) AS settled,
        CASE WHEN a.window_kind = 'minute' THEN div(a.level_micros, 1000000)
          ELSE a.limit_amount - a.spent - o.amount END AS available,
        CASE WHEN a.window_kind = 'minute' THEN div(a.level_micros, 1000000) + o.amount
          ELSE a.limit_amount - a.spent END AS unspent,
        CASE WHEN a.window_kind = 'minute' THEN jsonb_build_array(coalesce(l.epoch, 0), a.level_micros::text,
          (SELECT count(*) FROM lease h WHERE h.allowance_id = a.id)) ELSE '[]' END AS of_rate
      FROM allowance a LEFT JOIN lease l ON l.allowance_id = a.id AND l.incarnation_id = p_incarnation
      CROSS JOIN LATERAL (
        SELECT coalesce(sum(x.granted - x.settled - x.returned), 0) AS amount FROM lease x
        WHERE x.allowance_id = a.id AND x.granted - x.settled - x.returned > 0) AS o
      WHERE a.id = ANY (p_ids || p_ask_ids)) AS f), '[]'));
END $$;
"""

CLOSE = """
-- End an incarnation: all goes back but what parked rows may still take; of a rate nothing does, since what was
-- not reported may have been consumed. One that is released and not proven dead may consume more: its leases of
-- rates end by time. Idempotent; also of one never registered, whose registration may still be
-- on its way.
CREATE OR REPLACE FUNCTION quota_close(
  p_incarnation text, p_parked_ids text[], p_parked numeric[], p_released boolean
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_ids text[];
BEGIN
  INSERT INTO incarnation (id, host, status, closed_at) VALUES (p_incarnation, '', 'closed', clock_timestamp())
  ON CONFLICT DO NOTHING;
  PERFORM FROM incarnation WHERE id = p_incarnation FOR UPDATE;
  v_ids := array(SELECT allowance_id FROM lease WHERE incarnation_id = p_incarnation);
  PERFORM FROM allowance WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE;
  PERFORM quota_turn(v_ids, clock_timestamp());
  DELETE FROM lease WHERE incarnation_id = p_incarnation AND epoch > 0 AND NOT p_released;
  UPDATE lease l SET returned = l.granted - l.settled - least(
    l.granted - l.settled - l.returned,
    coalesce((SELECT sum(p.amount) FROM unnest(p_parked_ids, p_parked) AS p(id, amount)
      WHERE p.id = l.allowance_id), 0))
  WHERE l.incarnation_id = p_incarnation AND l.epoch = 0;
  UPDATE incarnation SET status = 'closed', closed_at = coalesce(closed_at, clock_timestamp()),
    released = released OR (p_released AND status = 'open')
  WHERE id = p_incarnation;
  PERFORM quota_tell_askers(v_ids);
END $$;
"""

DOWN = """
DELETE FROM lease WHERE epoch > 0;
DROP TRIGGER stands ON lease;
CREATE TRIGGER stands BEFORE DELETE ON lease FOR EACH ROW EXECUTE FUNCTION forbid_change();
ALTER TABLE lease DROP COLUMN epoch, DROP COLUMN heard_at;
DROP FUNCTION quota_close, quota_post, quota_sync, quota_hear, quota_renew, quota_ask, quota_tell_askers, quota_give,
  quota_tell, quota_share, quota_available, quota_unspent, quota_turn, quota_level, quota_refill, quota_term;
"""


def upgrade() -> None:
    for script in (LEASES, BUCKET, READINGS, SYNC, CLOSE):
        run(script)


def downgrade() -> None:
    """The functions as they were: those of the migrations that made them."""
    run(DOWN)
    before = import_module("migrations.versions.20261130_0004_quota")
    since = import_module("migrations.versions.20261201_0012_settler_speed")
    for script in (before.READINGS, before.SYNC, before.POST_AND_CLOSE, since.QUOTA):
        run(script)
