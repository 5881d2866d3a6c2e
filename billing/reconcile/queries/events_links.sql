-- Each event admitted in the day, and each correction of the day, has its link or waits for one.
-- Links are looked up line by line: a plan that reads the whole chain never comes into question. What waits is
-- taken off as a set, because it is long while nobody seals. One statement: a sealer moves lines between the two.
line AS (
  SELECT 'event' AS kind, request_id AS line_id
  FROM usage_event WHERE admitted_at >= :begins AND admitted_at < :ends
  UNION ALL
  SELECT 'correction', id FROM usage_correction WHERE at >= :begins AND at < :ends),
scanned AS (SELECT count(*) AS scanned FROM line),
missing AS (
  SELECT l.kind, l.line_id
  FROM line l LEFT JOIN LATERAL (
    SELECT k.kind FROM usage_link k WHERE k.line_id = l.line_id LIMIT 1) linked ON true
  WHERE linked.kind IS DISTINCT FROM l.kind
  EXCEPT
  SELECT u.kind, waiting.line_id FROM usage_unsealed u CROSS JOIN unnest(u.line_ids) AS waiting (line_id)),
numbered AS (SELECT kind, line_id, row_number() OVER (PARTITION BY kind ORDER BY line_id) AS number FROM missing),
gap AS (
  SELECT kind || 's' AS scope, 'records' AS unit, kind || '_without_link' AS kind, count(*) AS left_value,
    0 AS right_value,
    format('no link, and no place among what waits for one: %s%s',
      string_agg(line_id, ', ' ORDER BY number) FILTER (WHERE number <= 5),
      CASE WHEN count(*) > 5 THEN format(' and %s more', count(*) - 5) END) AS explanation,
    NULL AS tenant_id, NULL AS backend_id, NULL AS model_id
  FROM numbered GROUP BY numbered.kind ORDER BY scope)
