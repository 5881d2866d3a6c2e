"""Quota: allowances, the incarnations that borrow of them, their leases, and the moves as locked functions.

Each function locks first (incarnation, then allowances in the order of their ids) and reads in later
statements, whose snapshots are younger than the locks: one statement that both locks and sums over-grants.
"""

from __future__ import annotations

from migrations.sql import run

revision = "20261130_0004"
down_revision = "20261130_0003"
branch_labels = None
depends_on = None

TABLES = """
-- A limit on something: L = limit_amount, S = spent. unleased: what was spent without a lease; shown, inside S.
CREATE TABLE allowance (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant,
  scope_kind text NOT NULL CHECK (scope_kind IN ('tenant', 'project', 'key', 'task')),
  scope_id text COLLATE "C" NOT NULL,
  what text NOT NULL CHECK (what IN ('picos', 'tokens', 'requests', 'concurrent')),
  window_kind text NOT NULL CHECK (window_kind = 'balance'),
  limit_amount picos NOT NULL,
  spent picos NOT NULL DEFAULT 0 CHECK (spent >= 0),
  unleased picos NOT NULL DEFAULT 0 CHECK (unleased >= 0),
  recall_until timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (scope_kind, scope_id, what, window_kind)
);
CREATE INDEX allowance_by_tenant ON allowance (tenant_id, id);

-- One life of a gateway process. released: an operator gave its leases back without proof of its death.
CREATE TABLE incarnation (
  id text COLLATE "C" PRIMARY KEY,
  host text NOT NULL,
  status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
  released boolean NOT NULL DEFAULT false,
  last_sequence bigint NOT NULL DEFAULT 0,
  started_at timestamptz NOT NULL DEFAULT now(),
  synced_at timestamptz,
  closed_at timestamptz,
  CHECK ((status = 'closed') = (closed_at IS NOT NULL))
);

-- What an incarnation has of an allowance; counters that only grow. Outstanding = granted - settled - returned.
-- uncovered: settled use that the lease should have covered and did not; 0 but after an operator's release.
CREATE TABLE lease (
  allowance_id text COLLATE "C" NOT NULL REFERENCES allowance,
  incarnation_id text COLLATE "C" NOT NULL REFERENCES incarnation,
  granted picos NOT NULL DEFAULT 0,
  settled picos NOT NULL DEFAULT 0 CHECK (settled >= 0),
  returned picos NOT NULL DEFAULT 0 CHECK (returned >= 0),
  uncovered picos NOT NULL DEFAULT 0 CHECK (uncovered >= 0),
  PRIMARY KEY (allowance_id, incarnation_id),
  CHECK (granted - settled - returned >= 0)
);
CREATE INDEX lease_outstanding ON lease (allowance_id) WHERE granted - settled - returned > 0;
CREATE INDEX lease_by_incarnation ON lease (incarnation_id);
CREATE INDEX lease_uncovered ON lease (incarnation_id) WHERE uncovered > 0;

CREATE FUNCTION lease_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.granted < OLD.granted OR NEW.settled < OLD.settled OR NEW.returned < OLD.returned
      OR NEW.uncovered < OLD.uncovered THEN
    RAISE EXCEPTION 'a counter of lease (%, %) would fall', OLD.allowance_id, OLD.incarnation_id
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER grows BEFORE UPDATE ON lease FOR EACH ROW EXECUTE FUNCTION lease_only_grows();
CREATE TRIGGER stands BEFORE DELETE ON lease FOR EACH ROW EXECUTE FUNCTION forbid_change();
"""

READINGS = """
-- A = L - S - outstanding, as one snapshot sees it.
CREATE FUNCTION quota_available(p_allowance text) RETURNS numeric LANGUAGE sql STABLE AS $$
  SELECT a.limit_amount - a.spent - coalesce((
    SELECT sum(l.granted - l.settled - l.returned) FROM lease l
    WHERE l.allowance_id = a.id AND l.granted - l.settled - l.returned > 0), 0)
  FROM allowance a WHERE a.id = p_allowance
$$;

-- The most that one background renewal is given: generous far from the limit, nothing at it.
CREATE FUNCTION quota_share(p_available numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
  SELECT greatest(div(p_available, 4), 0)
$$;

-- Holders learn of a recall, and waiting askers of what came back.
CREATE FUNCTION quota_tell(p_allowances text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('steelyard_changes', 'allowance:' || id) FROM unnest(p_allowances) AS id;
END $$;

CREATE FUNCTION quota_give(p_incarnation text, p_allowance text, p_amount numeric) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO lease (allowance_id, incarnation_id, granted) VALUES (p_allowance, p_incarnation, p_amount)
  ON CONFLICT (allowance_id, incarnation_id) DO UPDATE SET granted = lease.granted + EXCLUDED.granted;
END $$;

-- Tell the waiting askers of those allowances, of the given, that are under recall.
CREATE FUNCTION quota_tell_askers(p_allowances text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('steelyard_changes', 'allowance:' || id) FROM allowance
  WHERE id = ANY (p_allowances) AND recall_until > clock_timestamp();
END $$;
"""

SYNC = """
-- One need, all of its allowances or none. Returns the allowances that lack; empty: given.
CREATE FUNCTION quota_ask(p_incarnation text, p_ids text[], p_amounts numeric[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  v_lacking text[];
  v_fresh text[];
BEGIN
  v_lacking := array(
    SELECT n.id FROM unnest(p_ids, p_amounts) AS n(id, amount)
    WHERE n.amount > greatest(quota_available(n.id), 0) ORDER BY n.id);
  IF v_lacking = '{}' THEN
    PERFORM quota_give(p_incarnation, n.id, n.amount) FROM unnest(p_ids, p_amounts) AS n(id, amount)
    WHERE n.amount > 0;
    RETURN v_lacking;
  END IF;
  -- What is spent leaves too little: whatever holders gave back, it would not be covered.
  IF EXISTS (SELECT FROM unnest(p_ids, p_amounts) AS n(id, amount) JOIN allowance a USING (id)
      WHERE n.amount > greatest(a.limit_amount - a.spent, 0)) THEN
    RETURN v_lacking;
  END IF;
  -- Holders who know of a recall for half a second more, longer than any asker waits, need no new word.
  v_fresh := array(
    SELECT id FROM allowance WHERE id = ANY (v_lacking)
      AND (recall_until IS NULL OR recall_until < clock_timestamp() + interval '500 milliseconds'));
  UPDATE allowance SET recall_until = clock_timestamp() + interval '1 second' WHERE id = ANY (v_lacking);
  PERFORM quota_tell(v_fresh);
  RETURN v_lacking;
END $$;

-- The only message of a process. p_ids, p_returned, p_wants: leases with their cumulative totals returned and
-- what a renewal wants. p_ask, p_ask_ids, p_ask_amounts: whole needs, rows of one p_ask belong together (0, 1, …).
-- Amounts in the answer are strings: a JSON number might be read as a float.
CREATE FUNCTION quota_sync(
  p_incarnation text, p_sequence bigint, p_ids text[], p_returned numeric[], p_wants numeric[],
  p_ask integer[], p_ask_ids text[], p_ask_amounts numeric[]
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_incarnation incarnation;
  v_grown text[];
  v_verdicts jsonb;
  v_id text;
  v_ids text[];
  v_amounts numeric[];
  v_want numeric;
  v_give numeric;
BEGIN
  SELECT * INTO v_incarnation FROM incarnation WHERE id = p_incarnation FOR UPDATE;
  IF NOT FOUND OR v_incarnation.status = 'closed' THEN
    RETURN jsonb_build_object('sequence', p_sequence, 'closed', true);
  END IF;
  PERFORM FROM allowance WHERE id = ANY (p_ids || p_ask_ids) ORDER BY id FOR UPDATE;

  WITH grown AS (
    UPDATE lease l SET returned = m.total
    FROM unnest(p_ids, p_returned) AS m(id, total)
    WHERE l.allowance_id = m.id AND l.incarnation_id = p_incarnation AND m.total > l.returned
    RETURNING l.allowance_id)
  SELECT array_agg(allowance_id) INTO v_grown FROM grown;
  PERFORM quota_tell_askers(v_grown);

  IF p_sequence > v_incarnation.last_sequence THEN
    v_verdicts := '[]';
    FOR v_ids, v_amounts IN
      SELECT array_agg(n.id), array_agg(n.amount)
      FROM unnest(p_ask, p_ask_ids, p_ask_amounts) AS n(ask, id, amount) GROUP BY n.ask ORDER BY n.ask
    LOOP
      v_verdicts := v_verdicts || jsonb_build_array(to_jsonb(quota_ask(p_incarnation, v_ids, v_amounts)));
    END LOOP;
    FOR v_id, v_want IN
      SELECT a.id, m.want FROM unnest(p_ids, p_wants) AS m(id, want) JOIN allowance a USING (id)
      WHERE m.want > 0 AND (a.recall_until IS NULL OR a.recall_until <= clock_timestamp())
    LOOP
      v_give := least(v_want, quota_share(quota_available(v_id)));
      IF v_give > 0 THEN
        PERFORM quota_give(p_incarnation, v_id, v_give);
      END IF;
    END LOOP;
    UPDATE incarnation SET last_sequence = p_sequence, synced_at = clock_timestamp() WHERE id = p_incarnation;
  END IF;

  RETURN jsonb_build_object('sequence', p_sequence, 'asks', v_verdicts, 'leases', coalesce((
    SELECT jsonb_agg(jsonb_build_array(
      f.id, f.granted::text, f.returned::text, f.limit_amount::text, f.spent::text, f.available::text,
      CASE WHEN f.available < 0 THEN 1000
        ELSE greatest(ceil(extract(epoch FROM f.recall_until - clock_timestamp()) * 1000), 0)::integer END))
    FROM (
      SELECT a.id, a.limit_amount, a.spent, a.recall_until, quota_available(a.id) AS available,
        coalesce(l.granted, 0) AS granted, coalesce(l.returned, 0) AS returned
      FROM allowance a LEFT JOIN lease l ON l.allowance_id = a.id AND l.incarnation_id = p_incarnation
      WHERE a.id = ANY (p_ids || p_ask_ids)) AS f), '[]'));
END $$;
"""

POST_AND_CLOSE = """
-- New events of an incarnation, summed by allowance: taken of the lease min(x, n) as recorded, used x. Returns
-- what was unleased. A parked row that is repaired to less uses less than it takes: the lease ends what it
-- had taken all the same, so nothing stays out, whether its process lives or not.
CREATE FUNCTION quota_post(p_incarnation text, p_ids text[], p_taken numeric[], p_used numeric[]) RETURNS TABLE (allowance_id text, unleased numeric) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_event record;
  v_outstanding numeric;
  v_taken numeric;
BEGIN
  PERFORM FROM incarnation WHERE id = p_incarnation FOR UPDATE;
  PERFORM FROM allowance WHERE id = ANY (p_ids) ORDER BY id FOR UPDATE;
  FOR v_event IN
    SELECT * FROM unnest(p_ids, p_taken, p_used) AS e(id, taken, used) ORDER BY e.id
  LOOP
    SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) INTO v_outstanding
    FROM lease l WHERE l.allowance_id = v_event.id AND l.incarnation_id = p_incarnation;
    v_taken := least(v_event.taken, v_outstanding);
    UPDATE lease l SET settled = l.settled + v_taken, uncovered = l.uncovered + v_event.taken - v_taken
    WHERE l.allowance_id = v_event.id AND l.incarnation_id = p_incarnation;
    unleased := greatest(v_event.used - v_taken, 0);
    UPDATE allowance a SET spent = a.spent + v_event.used, unleased = a.unleased + quota_post.unleased
    WHERE a.id = v_event.id;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'no allowance %', v_event.id USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF v_event.used < v_taken THEN
      PERFORM quota_tell_askers(array[v_event.id]);
    END IF;
    allowance_id := v_event.id;
    RETURN NEXT;
  END LOOP;
END $$;

-- End an incarnation: all goes back but what parked rows may still take. Idempotent; also of one never registered,
-- whose registration may still be on its way.
CREATE FUNCTION quota_close(p_incarnation text, p_parked_ids text[], p_parked numeric[], p_released boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_ids text[];
BEGIN
  INSERT INTO incarnation (id, host, status, closed_at) VALUES (p_incarnation, '', 'closed', clock_timestamp())
  ON CONFLICT DO NOTHING;
  PERFORM FROM incarnation WHERE id = p_incarnation FOR UPDATE;
  v_ids := array(SELECT allowance_id FROM lease WHERE incarnation_id = p_incarnation);
  PERFORM FROM allowance WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE;
  UPDATE lease l SET returned = l.granted - l.settled - least(
    l.granted - l.settled - l.returned,
    coalesce((SELECT sum(p.amount) FROM unnest(p_parked_ids, p_parked) AS p(id, amount)
      WHERE p.id = l.allowance_id), 0))
  WHERE l.incarnation_id = p_incarnation;
  UPDATE incarnation SET status = 'closed', closed_at = coalesce(closed_at, clock_timestamp()),
    released = released OR (p_released AND status = 'open')
  WHERE id = p_incarnation;
  PERFORM quota_tell_askers(v_ids);
END $$;
"""

DOWN = """
DROP FUNCTION quota_close, quota_post, quota_sync, quota_ask, quota_tell_askers, quota_give, quota_tell,
  quota_share, quota_available;
DROP TABLE lease, incarnation, allowance;
DROP FUNCTION lease_only_grows;
"""


def upgrade() -> None:
    run(TABLES)
    run(READINGS)
    run(SYNC)
    run(POST_AND_CLOSE)


def downgrade() -> None:
    run(DOWN)
