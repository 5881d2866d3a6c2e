-- What a transaction of the day did to a wallet is what moved its limit; a grant took its amount from its source.
scanned AS (SELECT count(*) AS scanned FROM posted WHERE kind <> 'usage'),
gap AS (
  SELECT p.id AS scope, 'picos' AS unit, 'move_differs' AS kind, m.amount AS left_value, p.wallet AS right_value,
    format('the limit of the wallet moved by %s, its ledger entry is %s', coalesce(m.amount, 0),
      coalesce(p.wallet, 0)) AS explanation,
    p.tenant_id, NULL AS backend_id, NULL AS model_id
  FROM posted p LEFT JOIN LATERAL (
    SELECT sum(amount) AS amount FROM wallet_move WHERE transaction_id = p.id) m ON true
  WHERE p.kind <> 'usage' AND coalesce(m.amount, 0) <> coalesce(p.wallet, 0)
  UNION ALL
  SELECT g.id, 'picos', 'grant_differs', g.amount, p.source,
    format('the grant is of %s, its transaction took %s', g.amount, coalesce(p.source, 0)), p.tenant_id, NULL, NULL
  FROM wallet_grant g JOIN posted p ON p.id = g.transaction_id WHERE p.source IS DISTINCT FROM g.amount)
