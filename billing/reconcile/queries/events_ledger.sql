-- The events of each transaction cost what it took out of the wallet and put into revenue; no charge is without one.
cost AS (
  SELECT transaction_id, count(*) AS events, sum(cost) AS cost, min(tenant_id) AS tenant_id,
    min(tenant_id) <> max(tenant_id) AS is_mixed
  FROM usage_event WHERE transaction_id IN (SELECT id FROM posted) GROUP BY transaction_id),
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
  SELECT e.request_id, 'picos', 'event_without_transaction', e.cost, NULL, 'a charge that no transaction carries',
    e.tenant_id, e.backend_id, e.model_id
  FROM usage_event e LEFT JOIN ledger_transaction t ON t.id = e.transaction_id
  WHERE e.admitted_at >= :begins AND e.admitted_at < :ends AND e.cost > 0 AND t.id IS NULL)
