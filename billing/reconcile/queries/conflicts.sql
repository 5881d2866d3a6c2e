-- No request of the day was settled a second time with other content.
second AS (SELECT * FROM usage_conflict WHERE seen_at >= :begins AND seen_at < :ends),
scanned AS (SELECT count(*) AS scanned FROM second),
gap AS (
  SELECT c.request_id AS scope, 'records' AS unit, 'conflict' AS kind, 2 AS left_value, 1 AS right_value,
    'settled twice with other content: the first settlement stands, the second was never charged' AS explanation,
    e.tenant_id, e.backend_id, e.model_id
  FROM second c LEFT JOIN usage_event e ON e.request_id = c.request_id)
