-- What a limit is; one of these is one row of allowance.
CREATE TYPE quota_limit AS (
  tenant_id text, scope_kind text, scope_id text, model_id text, what text, window_kind text,
  period_start timestamptz, period_end timestamptz, amount numeric, burst numeric, source text);

-- The limits that hold for a tenant at a moment, or those of one of its scopes: the newest override in force, else the plan's.
CREATE FUNCTION quota_limits_at(p_tenant text, p_at timestamptz, p_scope text) RETURNS SETOF quota_limit
LANGUAGE sql STABLE AS $$
  WITH scope AS (
    SELECT s.kind, s.id FROM (
      SELECT 'tenant' AS kind, p_tenant AS id
      UNION ALL SELECT 'project', id FROM project WHERE tenant_id = p_tenant AND status = 'active'
      UNION ALL SELECT 'key', k.id FROM api_key k JOIN project p ON p.id = k.project_id
        WHERE k.tenant_id = p_tenant AND p.status = 'active' AND k.revoked_at IS NULL
          AND (k.expires_at IS NULL OR k.expires_at > p_at)) s
    WHERE p_scope IS NULL OR s.id = p_scope),
  overriding AS (
    SELECT DISTINCT ON (o.scope_kind, o.scope_id, o.model_id, o.what, o.window_kind) o.*
    FROM limit_override o JOIN scope s ON s.kind = o.scope_kind AND s.id = o.scope_id
    WHERE o.tenant_id = p_tenant AND o.revoked_at IS NULL AND o.effective_from <= p_at
      AND (o.expires_at IS NULL OR o.expires_at > p_at)
    ORDER BY o.scope_kind, o.scope_id, o.model_id, o.what, o.window_kind, o.id DESC),
  planned AS (
    SELECT s.kind, s.id, l.* FROM plan_assignment a JOIN plan_limit l USING (plan_id) JOIN scope s ON s.kind = l.level
    WHERE a.tenant_id = p_tenant AND a.effective_from <= p_at AND (a.effective_to IS NULL OR a.effective_to > p_at))
  SELECT p_tenant, scope_kind, scope_id, model_id, what, window_kind, NULL::timestamptz, NULL::timestamptz,
    amount, CASE window_kind WHEN 'minute' THEN coalesce(burst, amount) END, 'override:' || id
  FROM overriding WHERE amount IS NOT NULL
  UNION ALL
  SELECT p_tenant, p.kind, p.id, p.model_id, p.what, p.window_kind, NULL, NULL,
    p.amount, CASE p.window_kind WHEN 'minute' THEN coalesce(p.burst, p.amount) END, 'plan:' || p.plan_id
  FROM planned p WHERE NOT EXISTS (SELECT FROM overriding o
    WHERE o.scope_kind = p.kind AND o.scope_id = p.id AND o.model_id IS NOT DISTINCT FROM p.model_id
      AND o.what = p.what AND o.window_kind = p.window_kind)
$$;

-- The calendar windows of which a tenant has limits, or will have.
CREATE FUNCTION quota_windows(p_tenant text, p_now timestamptz) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT window_kind FROM plan_assignment JOIN plan_limit USING (plan_id)
  WHERE tenant_id = p_tenant AND (effective_to IS NULL OR effective_to > p_now)
    AND window_kind IN ('day', 'week', 'month')
  UNION SELECT window_kind FROM limit_override
  WHERE tenant_id = p_tenant AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > p_now)
    AND window_kind IN ('day', 'week', 'month')
$$;

-- The rows that should be there: what holds now, of each period from now on as it will be at the period's start.
CREATE FUNCTION quota_wanted(p_tenants text[], p_now timestamptz, p_scope text) RETURNS SETOF quota_limit
LANGUAGE sql STABLE AS $$
  WITH period AS (
    SELECT t.id, w.kind, p.starts, p.ends, greatest(p_now, p.starts) AS at
    FROM unnest(p_tenants) AS t(id) CROSS JOIN LATERAL quota_windows(t.id, p_now) AS w(kind)
    CROSS JOIN LATERAL quota_periods(t.id, w.kind, p_now, p_now + quota_ahead(t.id)) p),
  held AS MATERIALIZED (
    SELECT m.at, l.* FROM (SELECT id, at FROM period UNION SELECT id, p_now FROM unnest(p_tenants) AS id) m
    CROSS JOIN LATERAL quota_limits_at(m.id, m.at, p_scope) l)
  SELECT tenant_id, scope_kind, scope_id, model_id, what, window_kind, period_start, period_end, amount, burst, source
  FROM held WHERE at = p_now AND window_kind NOT IN ('day', 'week', 'month')
  UNION ALL
  SELECT h.tenant_id, h.scope_kind, h.scope_id, h.model_id, h.what, h.window_kind, p.starts, p.ends,
    h.amount, h.burst, h.source
  FROM held h JOIN period p ON p.id = h.tenant_id AND p.kind = h.window_kind AND p.at = h.at
$$;

-- When a tenant's limits change by themselves next, or its periods have to be opened.
CREATE FUNCTION quota_next_change(p_tenant text, p_now timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT min(at) FROM (
    SELECT unnest(array[effective_from, effective_to]) AS at FROM plan_assignment WHERE tenant_id = p_tenant
    UNION ALL SELECT unnest(array[effective_from, expires_at]) FROM limit_override
      WHERE tenant_id = p_tenant AND revoked_at IS NULL
    UNION ALL SELECT max(p.ends) - quota_ahead(p_tenant) FROM quota_windows(p_tenant, p_now) AS w(kind)
      CROSS JOIN LATERAL quota_periods(p_tenant, w.kind, p_now, p_now + quota_ahead(p_tenant)) p GROUP BY w.kind
  ) changes WHERE at > p_now
$$;
