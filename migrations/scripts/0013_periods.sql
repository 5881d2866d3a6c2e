-- The first moment of a zone's clock at which it shows this: where it never does, the moment that it skips it; where
-- it does twice, PostgreSQL takes the later one and the offset of the day before gives the earlier.
CREATE FUNCTION quota_first_moment(p_zone text, p_local timestamp) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_later timestamptz := p_local AT TIME ZONE p_zone;
  v_before timestamptz := v_later - interval '26 hours';
  v_earlier timestamptz := (p_local - ((v_before AT TIME ZONE p_zone) - (v_before AT TIME ZONE 'UTC')))
    AT TIME ZONE 'UTC';
BEGIN
  RETURN CASE WHEN v_earlier < v_later AND v_earlier AT TIME ZONE p_zone = p_local THEN v_earlier ELSE v_later END;
END $$;

-- The day, week (from Monday) or month of a zone in which a moment lies.
CREATE FUNCTION quota_period(p_window text, p_zone text, p_at timestamptz, OUT starts timestamptz, OUT ends timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_step interval := ('1 ' || p_window)::interval;
  v_local timestamp := date_trunc(p_window, p_at AT TIME ZONE p_zone);
BEGIN
  -- A clock set back over midnight shows the day before once more.
  IF p_at >= quota_first_moment(p_zone, v_local + v_step) THEN
    v_local := v_local + v_step;
  ELSIF p_at < quota_first_moment(p_zone, v_local) THEN
    v_local := v_local - v_step;
  END IF;
  starts := quota_first_moment(p_zone, v_local);
  ends := quota_first_moment(p_zone, v_local + v_step);
END $$;

-- A tenant's periods of a window from now until after a moment, one at the other's end. Those that some limit has
-- already stay as they are, though the tenant's zone may be another now.
CREATE FUNCTION quota_periods(p_tenant text, p_window text, p_now timestamptz, p_until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_zone text := (SELECT timezone FROM tenant WHERE id = p_tenant);
  v_known record;
BEGIN
  ends := p_now;
  WHILE ends <= p_until LOOP
    SELECT period_start, period_end INTO v_known FROM allowance
    WHERE tenant_id = p_tenant AND window_kind = p_window AND period_end > ends ORDER BY period_end LIMIT 1;
    IF v_known.period_start <= ends THEN
      starts := v_known.period_start;
      ends := v_known.period_end;
    ELSE
      SELECT greatest(p.starts, (SELECT max(period_end) FROM allowance
          WHERE tenant_id = p_tenant AND window_kind = p_window AND period_end <= quota_periods.ends)),
        least(p.ends, v_known.period_start)
      INTO starts, ends FROM quota_period(p_window, v_zone, ends) p;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Rows are there a day before their period, of each tenant at another time: not all at midnight.
CREATE FUNCTION quota_ahead(p_tenant text) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
  SELECT interval '1 day' + (hashtext(p_tenant) & 8191) * interval '1 second'
$$;
