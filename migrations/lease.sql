-- The lease: what the embedded elector (election.provider: postgres) needs. One row per resource says who holds
-- the lease and until when, by this server's clock. It only decides who may try: the fence decides who leads.
--
-- Awards are numbered by one sequence, never below what the fence recorded: even if a row is deleted, released
-- or taken over, no old number is used again. Every reference to a term contains its award and its incarnation,
-- so a late request of an old term finds nothing to change.
--
-- A lease is acquired and released without waiting for synchronous standbys. While they are away, what waits is
-- the grant that follows, and it can say so; a request for a lease has only as long as the lease lasts. A lease
-- that is flushed on the primary alone is enough. The commit of a grant comes after that of its lease in the
-- log, so a standby that has confirmed the grant has the lease too. If a failover loses a lease, no epoch was
-- granted for it, or none that anybody was told of. If its award is then given a second time, the later one of
-- the two grants is refused, because its award is not newer (ZF006). If a failover loses a release, the lease
-- lasts until its term ends.
CREATE TABLE fencepost.lease (
    resource    text COLLATE "C" PRIMARY KEY,
    award       bigint NOT NULL DEFAULT 0, -- 0: nobody had it yet
    worker      text COLLATE "C",
    incarnation text COLLATE "C",
    vacancy     text NOT NULL DEFAULT 'left' CHECK (vacancy IN ('held', 'left', 'silence')),
    renewals    bigint NOT NULL DEFAULT 0, -- grows with each renewal: a candidate can tell by its own clock that it stands still
    ttl         interval NOT NULL DEFAULT '0',
    acquired_at timestamptz,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity',
    silent      interval -- how long the worker had been silent when the lease was released for that; NULL: not known
) WITH (fillfactor = 50); -- renewed again and again: room for the row's next version
COMMENT ON TABLE fencepost.lease IS 'the embedded elector: who may try for an epoch of a resource, and until when';

CREATE SEQUENCE fencepost.lease_award AS bigint;

-- The order of awards counts within one instance of the elector, whose id is this marker.
CREATE TABLE fencepost.lease_marker (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    marker text COLLATE "C" NOT NULL
);
INSERT INTO fencepost.lease_marker (marker) VALUES (pg_catalog.gen_random_uuid()::text);

-- Incarnations that gave up on a lease whose award they may not know about: a request of such an incarnation
-- that arrives later acquires nothing. A request that waits in the server gives up after a TTL (lock_timeout),
-- so it is enough to keep an entry for an hour.
CREATE TABLE fencepost.lease_over (
    incarnation text COLLATE "C" PRIMARY KEY,
    noted_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE fencepost.lease_over IS 'the embedded elector: candidacies that are over, kept for an hour';

-- Everybody may send a notification on a channel whose name is known, and every notification makes each proxy
-- read a lease. So only the control role can read the name.
CREATE TABLE fencepost.lease_channel (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    name text COLLATE "C" NOT NULL
);
INSERT INTO fencepost.lease_channel (name)
    VALUES ('fencepost_lease_' || pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''));

-- lease_listen makes this session listen for changes. The name of the channel does not appear in the statement,
-- which others may see in pg_stat_activity.
CREATE OR REPLACE FUNCTION fencepost.lease_listen() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('LISTEN %I', (SELECT c.name FROM fencepost.lease_channel c));
END $$;

-- lease_tell wakes those who wait for a change of a lease, '' for all leases. A proxy also tells the others by it, in
-- JSON, that a grant waits for registered backends. All databases of a server share one notification queue, and a
-- transaction that notifies while it is full fails at commit. If the queue is nearly full, lease_tell wakes nobody, and
-- the waiters find the change when they next poll.
CREATE OR REPLACE FUNCTION fencepost.lease_tell(what text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify((SELECT c.name FROM fencepost.lease_channel c), what);
    END IF;
END $$;

-- lease_notify wakes those who wait for changes of these leases. Commits of transactions that notify wait for
-- each other, in all databases of a server, and one of them may wait for a synchronous standby. So no lease is
-- acquired or released in a transaction that notifies: this is called in another one, which may fail, and a
-- waiter that is not told looks by itself. The commit waits for the notifications of others for at most a
-- second, and for no disk and no standby, because others wait for it in turn.
CREATE OR REPLACE FUNCTION fencepost.lease_notify(resources text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM set_config('lock_timeout', '1s', true);
    PERFORM fencepost.lease_tell(r.resource) FROM unnest(resources) r (resource);
END $$;

-- lease_held reports whether a lease cannot be acquired. stale_award and stale_renewals are values that a
-- candidate saw unchanged for a TTL of its own clock; because of them, a step of this server's clock blocks
-- nobody.
CREATE OR REPLACE FUNCTION fencepost.lease_held(lease fencepost.lease, stale_award bigint, stale_renewals bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN lease.vacancy = 'held' AND lease.expires_at > clock_timestamp()
        AND (lease.award, lease.renewals) IS DISTINCT FROM (stale_award, stale_renewals);
END $$;

-- lease_row locks a resource's lease, and creates it if the resource is new.
CREATE OR REPLACE FUNCTION fencepost.lease_row(resource text) RETURNS fencepost.lease
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cur fencepost.lease%ROWTYPE;
BEGIN
    LOOP
        INSERT INTO fencepost.lease AS l (resource) VALUES (resource) ON CONFLICT DO NOTHING;
        SELECT l.* INTO cur FROM fencepost.lease l WHERE l.resource = resource FOR UPDATE;
        EXIT WHEN FOUND; -- else it was deleted meanwhile
    END LOOP;
    RETURN cur;
END $$;

-- lease_take tries once to acquire a lease. The award is NULL if somebody else holds the lease, or if the
-- incarnation is over. The holder gets its present award again, because the response to the first request may
-- have been lost.
CREATE OR REPLACE FUNCTION fencepost.lease_take(resource text, worker text, incarnation text, ttl interval, stale_award bigint, stale_renewals bigint,
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

-- lease_renew extends a term by another TTL. It reports false if the term is over. It need not be flushed: what
-- a crash loses only shortens the lease.
CREATE OR REPLACE FUNCTION fencepost.lease_renew(resource text, award bigint, incarnation text, ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.lease l SET renewals = l.renewals + 1, ttl = ttl, expires_at = clock_timestamp() + ttl
        WHERE l.resource = resource AND l.award = award AND l.incarnation = incarnation AND l.vacancy = 'held';
    RETURN FOUND;
END $$;

-- lease_end ends a term. vacancy says why ('left' or 'silence'), and silent for how long the worker had been
-- silent: each worker has its own timeout, which other proxies do not know. The incarnation that left 'silence'
-- can still change it to 'left'. Award 0 stands for whatever the incarnation holds, or would get by a request
-- that is still in flight: because of the row's lock, either this sees that award, or that request sees that
-- the incarnation is over.
CREATE OR REPLACE FUNCTION fencepost.lease_end(resource text, award bigint, incarnation text, vacancy text, silent interval) RETURNS boolean
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

-- lease_bump gives the elector a new instance id and numbers it. Its awards are newer than all earlier ones.
-- Held leases continue until their terms end. It notifies nobody, because its commit waits for the standbys.
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
