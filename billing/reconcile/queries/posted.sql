-- The transactions that were posted in the day, each with the sums of its entries.
posted AS (
  SELECT t.id, t.kind, t.tenant_id, t.entry_count, n.*
  FROM ledger_transaction t CROSS JOIN LATERAL (
    SELECT count(*) AS entries, sum(e.amount) AS off,
      bool_or(a.tenant_id <> t.tenant_id) AS is_foreign,
      count(DISTINCT a.currency) AS currencies,
      sum(e.amount) FILTER (WHERE a.kind = 'revenue') AS revenue,
      sum(e.amount) FILTER (WHERE a.kind = 'wallet') AS wallet,
      -sum(e.amount) FILTER (WHERE a.kind IN ('cash', 'promo')) AS source
    FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id WHERE e.transaction_id = t.id) n
  WHERE t.at >= :begins AND t.at < :ends),
