-- While the synchronous standbys are away, a lease is acquired and released all the same. What waits
-- for them is the grant that follows, which can then say so: requests for the lease have only as
-- long as the lease lasts.
--
-- A lease that is flushed on the primary alone is enough, because it only decides who may try. The
-- commit of a grant comes after that of its lease in the log, so a standby that has confirmed the
-- grant has the lease too. A lease that a failover loses was of no use: no epoch was granted for it,
-- or none that anybody was told of. If its award is given a second time then, the later one of the
-- two grants is refused, because its award is not newer (ZF006). A release that is lost only leaves a
-- lease until its term ends.

-- lease_acquire tries once. The award is NULL if somebody else holds the lease, or if the
-- incarnation is over. The holder gets its present award again, because the response to the first
-- request may have been lost.
CREATE OR REPLACE FUNCTION fencepost.lease_acquire(resource text, worker text, incarnation text, ttl interval, stale_award bigint, stale_renewals bigint,
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
    PERFORM fencepost.lease_tell(resource);
END $$;

-- lease_release ends a term; vacancy says why: 'left' or 'silence', and silent, how long the worker
-- had been silent. The incarnation that left 'silence' can still change it to 'left'. Award 0 stands
-- for whatever the incarnation holds, or would get by a request that is still in flight: because of
-- the row's lock, either this sees that award, or that request sees that the incarnation is over.
CREATE OR REPLACE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text, silent interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed boolean;
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
    changed := FOUND;
    IF changed THEN
        PERFORM fencepost.lease_tell(resource);
    END IF;
    RETURN changed;
END $$;

SELECT fencepost.seal();
