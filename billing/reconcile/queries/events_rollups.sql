-- Each 15-minute sum holds what the events admitted in it, and the corrections posted in it, sum to.
told AS (
  SELECT date_bin('15 minutes', admitted_at, 'epoch') AS bucket, tenant_id, project_id, key_id, model_id,
    price_version_id, currency, usage_source, 1 AS requests, input, input_cached, input_cache_write, output,
    reasoning, billed_input, billed_input_cached, billed_input_cache_write, billed_output, cost
  FROM usage_event WHERE admitted_at >= :begins AND admitted_at < :ends
  UNION ALL
  SELECT date_bin('15 minutes', c.at, 'epoch'), e.tenant_id, e.project_id, e.key_id, e.model_id,
    e.price_version_id, e.currency, 'correction', 0, 0, 0, 0, 0, 0, c.billed_input, c.billed_input_cached,
    c.billed_input_cache_write, c.billed_output, -c.amount
  FROM usage_correction c JOIN usage_event e ON e.request_id = c.request_id
  WHERE c.at >= :begins AND c.at < :ends),
summed AS (
  SELECT bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source,
    sum(requests) AS requests, sum(input) AS input, sum(input_cached) AS input_cached,
    sum(input_cache_write) AS input_cache_write, sum(output) AS output, sum(reasoning) AS reasoning,
    sum(billed_input) AS billed_input, sum(billed_input_cached) AS billed_input_cached,
    sum(billed_input_cache_write) AS billed_input_cache_write, sum(billed_output) AS billed_output, sum(cost) AS cost
  FROM told GROUP BY bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source),
kept AS (SELECT * FROM usage_rollup WHERE bucket >= :begins AND bucket < :ends),
differing AS (
  SELECT bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source,
    s.requests IS NULL AS is_unfounded, k.requests IS NULL AS is_absent, v.*
  FROM summed s FULL JOIN kept k
    USING (bucket, tenant_id, project_id, key_id, model_id, price_version_id, currency, usage_source)
  CROSS JOIN LATERAL (VALUES
    ('requests', 'records', s.requests, k.requests), ('cost', 'picos', s.cost, k.cost),
    ('input', 'tokens', s.input, k.input), ('input_cached', 'tokens', s.input_cached, k.input_cached),
    ('input_cache_write', 'tokens', s.input_cache_write, k.input_cache_write),
    ('output', 'tokens', s.output, k.output), ('reasoning', 'tokens', s.reasoning, k.reasoning),
    ('billed_input', 'tokens', s.billed_input, k.billed_input),
    ('billed_input_cached', 'tokens', s.billed_input_cached, k.billed_input_cached),
    ('billed_input_cache_write', 'tokens', s.billed_input_cache_write, k.billed_input_cache_write),
    ('billed_output', 'tokens', s.billed_output, k.billed_output)) v (counter, unit, told, held)
  WHERE coalesce(v.told, 0) <> coalesce(v.held, 0)),
scanned AS (SELECT coalesce(sum(requests), 0) AS scanned FROM summed),
gap AS (
  SELECT concat_ws(' ', to_char(bucket AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24\:MI'), project_id, key_id, model_id,
      price_version_id, currency, usage_source, counter) AS scope,
    unit, CASE WHEN is_unfounded THEN 'rollup_without_events' WHEN is_absent THEN 'events_without_rollup'
      ELSE 'sum_differs' END AS kind,
    told AS left_value, held AS right_value,
    format('%s of 15 minutes: events and corrections sum to %s, the roll-up holds %s', counter,
      coalesce(told, 0), coalesce(held, 0)) AS explanation,
    tenant_id, NULL AS backend_id, model_id
  FROM differing ORDER BY bucket, tenant_id, scope)
