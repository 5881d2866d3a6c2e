-- Allowances spent what leases settled (of a rate nothing is posted, and its leases go); no use was uncovered; the
-- dead hold no more than their parked records may take.
lent AS (SELECT allowance_id, sum(settled) AS settled, sum(uncovered) AS uncovered FROM lease GROUP BY allowance_id),
owed AS (
  SELECT p.incarnation_id, h.value ->> 0 AS allowance_id, sum((h.value ->> 1)::numeric) AS amount
  FROM parked_record p CROSS JOIN LATERAL jsonb_array_elements(p.holds) h
  WHERE p.resolved_at IS NULL GROUP BY 1, 2),
scanned AS (SELECT count(*) AS scanned FROM lease),
counted AS (
  SELECT *, CASE WHEN what = 'picos' THEN 'picos' WHEN what LIKE '%tokens' THEN 'tokens' ELSE 'records' END AS unit
  FROM allowance),
gap AS (
  SELECT a.id AS scope, a.unit, 'spent_differs' AS kind, coalesce(l.settled, 0) AS left_value,
    a.spent - a.unleased AS right_value,
    format('leases settled %s; the allowance spent %s, of that %s without a lease', coalesce(l.settled, 0), a.spent,
      a.unleased) AS explanation,
    a.tenant_id, NULL AS backend_id, NULL AS model_id
  FROM counted a LEFT JOIN lent l ON l.allowance_id = a.id
  WHERE a.window_kind <> 'minute' AND a.spent - a.unleased <> coalesce(l.settled, 0)
  UNION ALL
  SELECT a.id, a.unit, 'uncovered', l.uncovered, 0, 'use that no lease covered any more', a.tenant_id, NULL, NULL
  FROM lent l JOIN counted a ON a.id = l.allowance_id WHERE l.uncovered <> 0
  UNION ALL
  SELECT l.incarnation_id || ' ' || l.allowance_id, a.unit, 'lent_to_the_dead',
    l.granted - l.settled - l.returned, coalesce(o.amount, 0),
    'a closed process still holds more than its parked records may take', a.tenant_id, NULL, NULL
  FROM lease l JOIN incarnation i ON i.id = l.incarnation_id JOIN counted a ON a.id = l.allowance_id
    LEFT JOIN owed o ON o.incarnation_id = l.incarnation_id AND o.allowance_id = l.allowance_id
  WHERE i.status = 'closed' AND l.epoch = 0 AND l.granted - l.settled - l.returned > coalesce(o.amount, 0))
