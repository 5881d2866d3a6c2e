-- A row that is there and should say something else. amount NULL: the limit has ended.
CREATE TYPE quota_change AS (id text, tenant_id text, amount numeric, burst numeric, source text);

-- Make the rows of these tenants, or of one scope of theirs, what they should be. Nothing changes if they are.
-- Locks the tenants' rows, then, at the end, the allowances that change, in the order of their ids: a transaction
-- does it as its last step, and once.
CREATE FUNCTION quota_resolve_all(p_tenants text[], p_scope text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz;
  v_wanted quota_limit[];
  v_kept text[];
  v_missing quota_limit[];
  v_changes quota_change[];
  v_touched text[];
BEGIN
  PERFORM FROM tenant_limits WHERE tenant_id = ANY (p_tenants) ORDER BY tenant_id FOR UPDATE;
  v_now := clock_timestamp();
  v_wanted := array(SELECT w FROM quota_wanted(p_tenants, v_now, p_scope) w);
  v_kept := array(SELECT DISTINCT concat_ws('/', scope_id, model_id, what, window_kind) FROM unnest(v_wanted));

  -- Limits that ended keep their rows, and live again. A period that is just over is still read by processes whose
  -- clock is late, as long as its limit holds at all.
  SELECT array_agg(w) FILTER (WHERE a.id IS NULL),
    array_agg(ROW(a.id, a.tenant_id, w.amount, w.burst, w.source)::quota_change) FILTER (WHERE a.id IS NOT NULL
      AND CASE WHEN w.tenant_id IS NULL
        THEN a.ended_at IS NULL AND (coalesce(a.period_end, 'infinity') > v_now
          OR concat_ws('/', a.scope_id, a.model_id, a.what, a.window_kind) <> ALL (v_kept))
        ELSE (a.limit_amount, a.burst, a.limit_source, a.ended_at)
          IS DISTINCT FROM (w.amount, w.burst, w.source, NULL::timestamptz) END)
  INTO v_missing, v_changes
  FROM unnest(v_wanted) w FULL JOIN (
    SELECT * FROM allowance WHERE tenant_id = ANY (p_tenants) AND limit_source IS NOT NULL
      AND coalesce(period_end, 'infinity') > v_now - interval '1 hour' AND (p_scope IS NULL OR scope_id = p_scope)) a
    ON a.scope_kind = w.scope_kind AND a.scope_id = w.scope_id AND a.what = w.what AND a.window_kind = w.window_kind
    AND coalesce(a.model_id, '') = coalesce(w.model_id, '')
    AND coalesce(a.period_start, '-infinity') = coalesce(w.period_start, '-infinity');

  INSERT INTO allowance (id, tenant_id, scope_kind, scope_id, model_id, what, window_kind, limit_amount, burst,
    level_micros, level_at, period_start, period_end, limit_source)
  SELECT 'alw_' || replace(uuidv7()::text, '-', ''), w.tenant_id, w.scope_kind, w.scope_id, w.model_id, w.what,
    w.window_kind, w.amount, w.burst, w.burst * 1000000, CASE WHEN w.burst IS NOT NULL THEN v_now END,
    w.period_start, w.period_end, w.source
  FROM unnest(v_missing) w;
  IF v_changes IS NOT NULL THEN
    PERFORM FROM allowance WHERE id IN (SELECT id FROM unnest(v_changes)) ORDER BY id FOR UPDATE;
    PERFORM quota_change_limits(v_changes);
  END IF;
  v_touched := array(SELECT tenant_id FROM unnest(v_missing) UNION SELECT tenant_id FROM unnest(v_changes));
  -- What is due stays due where only one scope was looked at.
  WITH turned AS (
    UPDATE tenant_limits t SET next_change_at = n.at,
      version = t.version + CASE WHEN t.tenant_id = ANY (v_touched) THEN 1 ELSE 0 END
    FROM (SELECT tenant_id AS id, CASE WHEN p_scope IS NOT NULL AND next_change_at <= v_now THEN next_change_at
        ELSE quota_next_change(tenant_id, v_now) END AS at
      FROM tenant_limits WHERE tenant_id = ANY (p_tenants)) n
    WHERE n.id = t.tenant_id AND (t.tenant_id = ANY (v_touched) OR t.next_change_at IS DISTINCT FROM n.at)
    RETURNING t.tenant_id)
  SELECT array_agg(tenant_id) INTO v_touched FROM turned;
  PERFORM pg_notify('steelyard_changes', 'limits:' || id || coalesce('/' || p_scope, '')) FROM unnest(v_touched) AS id;
END $$;

-- Give locked allowances other limits. A rate's bucket first takes what the old rate has brought, and keeps what fits
-- the new capacity; where more is out than a lowered limit leaves, holders are asked to give back.
CREATE FUNCTION quota_change_limits(p_changes quota_change[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  UPDATE allowance a SET ended_at = v_now FROM unnest(p_changes) c WHERE c.id = a.id AND c.amount IS NULL;
  UPDATE allowance a SET limit_amount = c.amount, burst = c.burst, limit_source = c.source, ended_at = NULL,
    level_at = CASE WHEN a.window_kind = 'minute' THEN greatest(a.level_at, v_now) END,
    level_micros = CASE WHEN a.window_kind = 'minute' THEN greatest(0, least(
      (c.burst - o.amount) * 1000000,
      greatest(a.level_micros, least((a.burst - o.amount) * 1000000, a.level_micros + div(a.limit_amount
        * greatest(extract(epoch FROM v_now - a.level_at) * 1000000, 0)::numeric(38, 0), 60))))) END,
    recall_until = CASE WHEN a.window_kind <> 'minute' AND c.amount < a.spent + o.amount
      THEN v_now + interval '1 second' ELSE a.recall_until END
  FROM unnest(p_changes) c CROSS JOIN LATERAL (
    SELECT coalesce(sum(l.granted - l.settled - l.returned), 0) AS amount FROM lease l
    WHERE l.allowance_id = c.id AND l.granted - l.settled - l.returned > 0) o
  WHERE c.id = a.id AND c.amount IS NOT NULL;
  PERFORM quota_tell(array(SELECT id FROM unnest(p_changes)));
END $$;

-- Bring a tenant's limits up to date; the transaction's last step. Returns when they change by themselves next.
CREATE FUNCTION quota_resolve(p_tenant text) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
  PERFORM quota_resolve_all(array[p_tenant], NULL);
  RETURN (SELECT next_change_at FROM tenant_limits WHERE tenant_id = p_tenant);
END $$;

-- Bring tenants whose limits change by now up to date, as many at most, and none that another is at. Returns how many.
-- One that can't be (a time zone that PostgreSQL doesn't know) keeps what it has, and is tried again in a minute.
CREATE FUNCTION quota_resolve_due(p_most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  v_due text[];
  v_tenant text;
BEGIN
  v_due := array(SELECT tenant_id FROM tenant_limits WHERE next_change_at <= clock_timestamp()
    ORDER BY next_change_at LIMIT p_most FOR UPDATE SKIP LOCKED);
  BEGIN
    PERFORM quota_resolve_all(v_due, NULL);
    RETURN cardinality(v_due);
  EXCEPTION WHEN OTHERS THEN NULL;
  END;
  FOREACH v_tenant IN ARRAY v_due LOOP
    BEGIN
      PERFORM quota_resolve_all(array[v_tenant], NULL);
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'the limits of tenant % can''t be brought up to date: %', v_tenant, SQLERRM;
      UPDATE tenant_limits SET next_change_at = clock_timestamp() + interval '1 minute' WHERE tenant_id = v_tenant;
      PERFORM pg_notify('steelyard_changes', 'limits:' || v_tenant);
    END;
  END LOOP;
  RETURN cardinality(v_due);
END $$;

-- A new project, or one that opens or closes, has its limits in the same commit.
CREATE FUNCTION project_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM quota_resolve_scope(NEW.tenant_id, NEW.id);
  ELSIF NEW.status <> OLD.status THEN
    PERFORM quota_resolve(NEW.tenant_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER resolve AFTER INSERT OR UPDATE OF status ON project FOR EACH ROW EXECUTE FUNCTION project_limits();

-- A new key has its limits in the same commit; one that takes another's place takes its overrides too.
CREATE FUNCTION key_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.rotated_from IS NOT NULL THEN
    INSERT INTO limit_override (id, tenant_id, scope_kind, scope_id, model_id, what, window_kind, amount, burst,
      effective_from, expires_at, reason, created_by)
    SELECT 'ovr_' || replace(uuidv7()::text, '-', ''), tenant_id, 'key', NEW.id, model_id, what, window_kind, amount,
      burst, effective_from, expires_at, reason, created_by
    FROM (SELECT * FROM limit_override WHERE tenant_id = NEW.tenant_id AND scope_kind = 'key'
      AND scope_id = NEW.rotated_from AND revoked_at IS NULL ORDER BY id) o
    WHERE expires_at IS NULL OR expires_at > clock_timestamp();
  END IF;
  PERFORM quota_resolve_scope(NEW.tenant_id, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER resolve AFTER INSERT ON api_key FOR EACH ROW EXECUTE FUNCTION key_limits();

-- Bring the limits of a new scope up to date. Most tenants of a small house have none: that costs one lock.
CREATE FUNCTION quota_resolve_scope(p_tenant text, p_scope text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM tenant_limits WHERE tenant_id = p_tenant FOR UPDATE;
  IF EXISTS (SELECT FROM plan_assignment WHERE tenant_id = p_tenant
        AND (effective_to IS NULL OR effective_to > clock_timestamp()))
      OR EXISTS (SELECT FROM limit_override WHERE tenant_id = p_tenant AND scope_id = p_scope) THEN
    PERFORM quota_resolve_all(array[p_tenant], p_scope);
  END IF;
END $$;

-- A wallet changes what its tenant may do; its allowance then changes without a word to the catalogue.
CREATE FUNCTION wallet_opened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('steelyard_changes', 'tenant:' || NEW.tenant_id);
  RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON wallet FOR EACH ROW EXECUTE FUNCTION wallet_opened();
