-- The events of each transaction cost what it took out of the wallet and put into revenue; no charge is without one.
-- Looked up transaction by transaction: a plan that reads the whole history never comes into question.
cost AS (
  SELECT p.id AS transaction_id, c.*
  FROM posted p CROSS JOIN LATERAL (
    SELECT count(*) AS events, sum(e.cost) AS cost, min(e.tenant_id) AS tenant_id,
      min(e.tenant_id) <> max(e.tenant_id) AS is_mixed
    FROM usage_event e WHERE e.transaction_id = p.id) c
  WHERE c.events > 0),
charged AS (
  SELECT transaction_id, min(request_id) AS request_id, count(*) AS events, sum(cost) AS cost,
    min(tenant_id) AS tenant_id
  FROM usage_event WHERE admitted_at >= :begins AND admitted_at < :ends AND cost > 0 GROUP BY transaction_id),
scanned AS (SELECT coalesce(sum(events), 0) AS scanned FROM cost),
gap AS (
  SELECT p.id AS scope, 'picos' AS unit,
    CASE WHEN c.events IS NULL THEN 'entry_without_events' WHEN p.revenue IS NULL THEN 'events_without_entry'
      WHEN c.is_mixed OR c.tenant_id <> p.tenant_id THEN 'wrong_tenant' ELSE 'amount_differs' END AS kind,
    c.cost AS left_value, p.revenue AS right_value,
    format('%s events cost %s, the transaction has revenue %s and wallet %s', coalesce(c.events, 0),
      coalesce(c.cost, 0), coalesce(p.revenue, 0), coalesce(p.wallet, 0)) AS explanation,
    p.tenant_id, NULL AS backend_id, NULL AS model_id
  FROM posted p LEFT JOIN cost c ON c.transaction_id = p.id
  WHERE CASE p.kind
    WHEN 'usage' THEN c.cost IS DISTINCT FROM p.revenue OR c.cost IS DISTINCT FROM -p.wallet OR c.is_mixed
      OR c.tenant_id <> p.tenant_id
    ELSE c.events > 0 END
  UNION ALL
  SELECT c.request_id, 'picos', 'event_without_transaction', c.cost, NULL,
    format('%s charges that no transaction carries', c.events), c.tenant_id, NULL, NULL
  FROM charged c LEFT JOIN LATERAL (
    SELECT t.id FROM ledger_transaction t WHERE t.id = c.transaction_id LIMIT 1) t ON true
  WHERE t.id IS NULL)
