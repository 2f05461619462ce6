-- The lease: what the embedded elector (election.provider: postgres) needs. One row per resource
-- says who holds the lease and until when, by this server's clock. It only decides who may try: the
-- fence decides who leads.
--
-- Awards are numbered by one sequence, never below what the fence recorded: even if a row is
-- deleted, released or taken over, no old number is used again. Every reference to a term contains
-- its award and its incarnation, so a late request of an old term finds nothing to change.

CREATE TABLE fencepost.lease (
    resource    text COLLATE "C" PRIMARY KEY,
    award       bigint NOT NULL DEFAULT 0, -- 0: nobody had it yet
    worker      text COLLATE "C",
    incarnation text COLLATE "C",
    vacancy     text NOT NULL DEFAULT 'left' CHECK (vacancy IN ('held', 'left', 'silence')),
    renewals    bigint NOT NULL DEFAULT 0, -- grows with each renewal: a candidate can tell by its own clock that it stands still
    ttl         interval NOT NULL DEFAULT '0',
    acquired_at timestamptz,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50); -- renewed again and again: room for the row's next version
COMMENT ON TABLE fencepost.lease IS 'the embedded elector: who may try for an epoch of a resource, and until when';

CREATE SEQUENCE fencepost.lease_award AS bigint;

-- The order of awards counts within one instance of the elector, whose id is this marker.
CREATE TABLE fencepost.lease_marker (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    marker text COLLATE "C" NOT NULL
);
INSERT INTO fencepost.lease_marker (marker) VALUES (pg_catalog.gen_random_uuid()::text);

-- lease_held reports whether a lease cannot be acquired. stale_award and stale_renewals are values
-- that a candidate saw unchanged for a TTL of its own clock; because of them a step of this
-- server's clock blocks nobody.
CREATE FUNCTION fencepost.lease_held(lease fencepost.lease, stale_award bigint, stale_renewals bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN lease.vacancy = 'held' AND lease.expires_at > clock_timestamp()
        AND (lease.award, lease.renewals) IS DISTINCT FROM (stale_award, stale_renewals);
END $$;

-- lease_acquire tries once. The award is NULL if somebody else holds the lease. The holder gets its
-- present award again, because the response to the first request may have been lost.
CREATE FUNCTION fencepost.lease_acquire(resource text, worker text, incarnation text, ttl interval, stale_award bigint, stale_renewals bigint,
    OUT award bigint, OUT marker text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cur    fencepost.lease%ROWTYPE;
    lowest bigint;
BEGIN
    LOOP
        SELECT l.* INTO cur FROM fencepost.lease l WHERE l.resource = resource; -- without a lock: most that ask are refused
        IF FOUND AND cur.incarnation IS DISTINCT FROM incarnation AND fencepost.lease_held(cur, stale_award, stale_renewals) THEN
            RETURN;
        END IF;
        INSERT INTO fencepost.lease AS l (resource) VALUES (resource) ON CONFLICT DO NOTHING;
        SELECT l.* INTO cur FROM fencepost.lease l WHERE l.resource = resource FOR UPDATE;
        EXIT WHEN FOUND; -- else it was deleted meanwhile
    END LOOP;
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
    PERFORM fencepost.secure();
    UPDATE fencepost.lease l SET award = award, worker = worker, incarnation = incarnation, vacancy = 'held', renewals = l.renewals + 1,
        ttl = ttl, acquired_at = CASE WHEN l.award = award THEN l.acquired_at ELSE clock_timestamp() END,
        expires_at = clock_timestamp() + ttl
        WHERE l.resource = resource;
    PERFORM pg_notify('fencepost_lease', resource);
END $$;

-- lease_renew extends a term by another TTL. It reports false if the term is over. It need not be
-- flushed: what a crash loses only shortens the lease.
CREATE FUNCTION fencepost.lease_renew(resource text, award bigint, incarnation text, ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.lease l SET renewals = l.renewals + 1, ttl = ttl, expires_at = clock_timestamp() + ttl
        WHERE l.resource = resource AND l.award = award AND l.incarnation = incarnation AND l.vacancy = 'held';
    RETURN FOUND;
END $$;

-- lease_release ends a term; vacancy says why: 'left' or 'silence'. The incarnation that left
-- 'silence' can still change it to 'left'. Award 0 stands for whatever the incarnation holds.
CREATE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE fencepost.lease l SET vacancy = vacancy, expires_at = clock_timestamp()
        WHERE l.resource = resource AND l.award IN (award, CASE WHEN award = 0 THEN l.award END) AND l.incarnation = incarnation
          AND (l.vacancy = 'held' OR l.vacancy = 'silence' AND vacancy = 'left');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('fencepost_lease', resource);
    RETURN true;
END $$;

-- lease_bump gives the elector a new instance id, whose awards are newer than all earlier ones.
-- Held leases continue until their terms end.
CREATE FUNCTION fencepost.lease_bump() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh text := gen_random_uuid()::text;
BEGIN
    INSERT INTO fencepost.lease_marker AS m (marker) VALUES (fresh)
        ON CONFLICT (one) DO UPDATE SET marker = excluded.marker;
    RETURN fresh;
END $$;

SELECT fencepost.seal();
