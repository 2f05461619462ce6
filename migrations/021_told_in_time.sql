-- Corrections to who is told of a change, and when.

-- Proxies look at the orders, and a healthy leader's proxy at nothing else. So a raised epoch is an
-- order, too.
ALTER TABLE fencepost.orders DROP CONSTRAINT orders_kind_check,
    ADD CONSTRAINT orders_kind_check CHECK (kind IN ('evict', 'pause', 'resume', 'remove', 'prune', 'raise'));

-- raise_epoch puts a resource under an epoch above floor that nobody holds. An operator uses it
-- after a restore. Every former holder is superseded. A consistent fence that is already above
-- floor is left alone, without an order. floor NULL, for when nobody knows what was lost, means an
-- epoch far above everything recorded here.
CREATE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    after fencepost.fence%ROWTYPE;
    known bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    known := fencepost.known_epoch(rec);
    floor := coalesce(floor, known + 1048576);
    IF known > floor AND rec.epoch = known AND known = pg_sequence_last_value(fencepost.sequence_of(fence)) THEN
        RETURN known;
    END IF;
    after := rec;
    after.epoch := greatest(known, floor) + 1;
    after.worker := NULL;
    after.incarnation := NULL;
    after.source := 'operator';
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    PERFORM fencepost.note_order('raise', rec.resource, rec.worker, NULL, after.epoch, NULL, asked_by, reason);
    RETURN after.epoch;
END $$;

-- A command from before this migration does not say who gives the order.
CREATE OR REPLACE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT fencepost.raise_epoch(fence, floor, session_user::text, '', grace, patience)
$$;

-- Commits of transactions that notify wait for each other, in all databases of a server, and one of
-- them may wait for a synchronous standby. So no lease is acquired or released in a transaction that
-- notifies: lease_notify does that in another one, and may fail. Who was not told looks by itself.

-- lease_notify wakes those who wait for changes of these leases, '' for all leases. Its commit waits
-- for the notifications of others for at most a second, and for no disk and no standby, because others
-- wait for it in turn.
CREATE FUNCTION fencepost.lease_notify(resources text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM fencepost.lease_tell(r.resource) FROM unnest(resources) r (resource);
END $$;

-- lease_take is lease_acquire, and notifies nobody. It tries once. The award is NULL if somebody else
-- holds the lease, or if the incarnation is over. The holder gets its present award again, because the
-- response to the first request may have been lost.
CREATE FUNCTION fencepost.lease_take(resource text, worker text, incarnation text, ttl interval, stale_award bigint, stale_renewals bigint,
    OUT award bigint, OUT marker text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cur    fencepost.lease%ROWTYPE;
    lowest bigint;
BEGIN
    PERFORM fencepost.secure(); -- for the isolation level
    PERFORM set_config('synchronous_commit', 'local', true);
    PERFORM set_config('lock_timeout', format('%sms', greatest(1, ceil(extract(epoch FROM ttl) * 1000))), true);
    SELECT l.* INTO cur FROM fencepost.lease l WHERE l.resource = resource; -- without a lock: most that ask are refused
    IF FOUND AND cur.incarnation IS DISTINCT FROM incarnation AND fencepost.lease_held(cur, stale_award, stale_renewals) THEN
        RETURN;
    END IF;
    cur := fencepost.lease_row(resource);
    IF EXISTS (SELECT FROM fencepost.lease_over o WHERE o.incarnation = incarnation) THEN
        RETURN; -- this request comes late: nobody waits for its lease any more
    END IF;
    SELECT m.marker INTO STRICT marker FROM fencepost.lease_marker m;
    IF cur.incarnation = incarnation AND cur.vacancy = 'held' THEN
        award := cur.award;
    ELSIF fencepost.lease_held(cur, stale_award, stale_renewals) THEN
        RETURN;
    ELSE
        SELECT max(f.source_index) INTO lowest FROM fencepost.fence f WHERE f.resource = resource AND f.source = 'postgres';
        award := nextval('fencepost.lease_award');
        IF award <= lowest THEN
            award := setval('fencepost.lease_award', lowest + 1);
        END IF;
    END IF;
    UPDATE fencepost.lease l SET award = award, worker = worker, incarnation = incarnation, vacancy = 'held', renewals = l.renewals + 1,
        ttl = ttl, acquired_at = CASE WHEN l.award = award THEN l.acquired_at ELSE clock_timestamp() END,
        expires_at = clock_timestamp() + ttl
        WHERE l.resource = resource;
END $$;

-- lease_end is lease_release, and notifies nobody. It ends a term; vacancy says why: 'left' or
-- 'silence', and silent, how long the worker had been silent. The incarnation that left 'silence' can
-- still change it to 'left'. Award 0 stands for whatever the incarnation holds, or would get by a
-- request that is still in flight: because of the row's lock, either this sees that award, or that
-- request sees that the incarnation is over.
CREATE FUNCTION fencepost.lease_end(resource text, award bigint, incarnation text, vacancy text, silent interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'local', true);
    IF award = 0 THEN
        PERFORM fencepost.lease_row(resource);
        DELETE FROM fencepost.lease_over o WHERE o.incarnation IN (SELECT old.incarnation FROM fencepost.lease_over old
            WHERE old.noted_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED);
        INSERT INTO fencepost.lease_over AS o (incarnation) VALUES (incarnation) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE fencepost.lease l SET vacancy = vacancy, silent = silent, expires_at = clock_timestamp()
        WHERE l.resource = resource AND l.award IN (award, CASE WHEN award = 0 THEN l.award END) AND l.incarnation = incarnation
          AND (l.vacancy = 'held' OR l.vacancy = 'silence' AND vacancy = 'left');
    RETURN FOUND;
END $$;

-- Proxies from before this migration call lease_acquire and lease_release, and do not notify by
-- themselves. Nothing changes for them.
CREATE OR REPLACE FUNCTION fencepost.lease_acquire(resource text, worker text, incarnation text, ttl interval, stale_award bigint, stale_renewals bigint,
    OUT award bigint, OUT marker text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    SELECT t.award, t.marker INTO award, marker FROM fencepost.lease_take(resource, worker, incarnation, ttl, stale_award, stale_renewals) t;
    IF award IS NOT NULL THEN
        PERFORM fencepost.lease_tell(resource);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text, silent interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed boolean := fencepost.lease_end(resource, award, incarnation, vacancy, silent);
BEGIN
    IF changed THEN
        PERFORM fencepost.lease_tell(resource);
    END IF;
    RETURN changed;
END $$;

-- lease_bump changes in two ways: it notifies nobody, because its commit waits for the standbys, and
-- that does not depend on the default of the role.
CREATE OR REPLACE FUNCTION fencepost.lease_bump() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh text := gen_random_uuid()::text;
BEGIN
    PERFORM fencepost.secure();
    INSERT INTO fencepost.lease_marker AS m (marker) VALUES (fresh)
        ON CONFLICT (one) DO UPDATE SET marker = excluded.marker;
    PERFORM fencepost.generation('postgres', fresh);
    RETURN fresh;
END $$;

SELECT fencepost.seal();
