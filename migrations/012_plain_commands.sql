-- The hints of an operator's orders contain a command only if all names in it mean themselves in every
-- shell. Clients choose the names of resources and workers.
CREATE FUNCTION fencepost.plain(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT name ~ '^[A-Za-z0-9_.:@%+=,/][A-Za-z0-9_.:@%+=,/-]*$'
$$;

CREATE OR REPLACE FUNCTION fencepost.barred(fence integer, shown text, OUT what text, OUT hint text, OUT left_ms bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar   fencepost.bars%ROWTYPE;
    given fencepost.orders%ROWTYPE;
    why   text;
    stamp text := 'YYYY-MM-DD HH24:MI:SS "UTC"';
    lift  text;
BEGIN
    SELECT b.* INTO bar FROM fencepost.bars b
        WHERE b.fence = fence AND (b.worker IS NULL OR fencepost.quoted(b.worker) = shown) AND (b.until IS NULL OR b.until > clock_timestamp())
        ORDER BY b.worker NULLS FIRST LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT o.* INTO given FROM fencepost.orders o WHERE o.id = bar.order_id;
    why := CASE WHEN given.reason <> '' THEN ', because of ' || fencepost.quoted(given.reason) ELSE '' END;
    lift := CASE WHEN fencepost.plain(given.resource) AND fencepost.plain(current_database()) AND fencepost.plain(coalesce(bar.worker, 'everybody'))
        THEN format('run: fencepost resume %s --database %s', given.resource, current_database()) || coalesce(' --worker ' || bar.worker, '')
        ELSE 'run fencepost resume with the names that fencepost resource list shows, quoted for your shell' END;
    IF bar.worker IS NULL THEN
        what := format('%s paused the resource at %s%s', fencepost.quoted(given.asked_by), to_char(given.asked_at AT TIME ZONE 'UTC', stamp), why);
        hint := format('Nobody is granted an epoch of a paused resource. To end the pause, %s', lift);
    ELSE
        what := format('by order of %s, it may not campaign until %s%s', fencepost.quoted(given.asked_by),
            to_char(bar.until AT TIME ZONE 'UTC', stamp), why);
        hint := format('To let it campaign earlier, %s', lift);
    END IF;
    left_ms := ceil(extract(epoch FROM bar.until - clock_timestamp()) * 1000);
END $$;

SELECT fencepost.seal();
