-- Each transaction of the day has all its entries, of its tenant and in one currency, and they sum to zero.
scanned AS (SELECT coalesce(sum(entries), 0) AS scanned FROM posted),
gap AS (
  SELECT id AS scope, CASE WHEN off <> 0 THEN 'picos' ELSE 'records' END AS unit,
    CASE WHEN off <> 0 THEN 'unbalanced' WHEN entries <> entry_count THEN 'entries_missing'
      WHEN is_foreign THEN 'wrong_tenant' ELSE 'mixed_currencies' END AS kind,
    CASE WHEN off <> 0 THEN off ELSE entries END AS left_value,
    CASE WHEN off <> 0 THEN 0 ELSE entry_count END AS right_value,
    format('%s of %s entries, which sum to %s', entries, entry_count, coalesce(off, 0)) AS explanation,
    tenant_id, NULL AS backend_id, NULL AS model_id
  FROM posted WHERE off <> 0 OR entries <> entry_count OR is_foreign OR currencies > 1)
