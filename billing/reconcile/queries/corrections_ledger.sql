-- Each correction of the day gives what its transaction puts into the wallet and takes from revenue.
paired AS (
  SELECT coalesce(c.id, p.id) AS scope, c.id AS correction_id, c.amount, p.id AS posted_id, p.wallet, p.revenue,
    coalesce(c.tenant_id, p.tenant_id) AS tenant_id, p.tenant_id AS payer
  FROM (SELECT * FROM usage_correction WHERE at >= :begins AND at < :ends) c
    FULL JOIN (SELECT * FROM posted WHERE kind = 'correction') p ON p.id = c.transaction_id),
scanned AS (SELECT count(*) AS scanned FROM paired),
gap AS (
  SELECT scope, 'picos' AS unit,
    CASE WHEN correction_id IS NULL THEN 'entry_without_correction'
      WHEN posted_id IS NULL THEN 'correction_without_entry' ELSE 'amount_differs' END AS kind,
    amount AS left_value, wallet AS right_value,
    format('the correction gives %s; its transaction has wallet %s and revenue %s', coalesce(amount, 0),
      coalesce(wallet, 0), coalesce(revenue, 0)) AS explanation,
    tenant_id, NULL AS backend_id, NULL AS model_id
  FROM paired
  WHERE amount IS DISTINCT FROM wallet OR amount IS DISTINCT FROM -revenue OR payer IS DISTINCT FROM tenant_id)
