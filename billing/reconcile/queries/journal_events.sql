-- Nothing that was settled waits to become an event: no record is set aside, no journal is damaged or left behind.
-- A process without requests is silent too, but it has given back all that it was lent, or the settler took it.
open_record AS (SELECT * FROM parked_record WHERE resolved_at IS NULL),
damaged AS (SELECT * FROM journal_damage WHERE released_at IS NULL),
open_process AS (SELECT * FROM incarnation WHERE status = 'open'),
scanned AS (SELECT (SELECT count(*) FROM open_record) + (SELECT count(*) FROM open_process) AS scanned),
gap AS (
  SELECT format('parked %s', id) AS scope, 'records' AS unit, 'parked' AS kind, 1 AS left_value, 0 AS right_value,
    format('set aside: %s', reason) AS explanation, NULL AS tenant_id, NULL AS backend_id, NULL AS model_id
  FROM open_record
  UNION ALL
  SELECT format('%s at %s', incarnation_id, file_offset), 'records', 'quarantined', NULL, NULL,
    format('%s bytes of a journal are not what its writer wrote: what they held is unknown', byte_count),
    NULL, NULL, NULL
  FROM damaged
  UNION ALL
  SELECT id, 'records', 'journal_behind', NULL, NULL,
    format('a gateway process on %s fell silent %s seconds ago with what it was lent, and its journal is not closed',
      host, floor(extract(epoch FROM clock_timestamp() - synced_at))), NULL, NULL, NULL
  FROM open_process p WHERE synced_at < clock_timestamp() - interval '60 seconds'
    AND EXISTS (SELECT FROM lease WHERE incarnation_id = p.id AND granted - settled - returned > 0))
