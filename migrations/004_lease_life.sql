-- Leases that cannot be left without a holder, lease service instances that are numbered in time,
-- and notifications that others cannot send.

-- Incarnations that gave up on a lease whose award they may not know about: a request of such an
-- incarnation that arrives later acquires nothing. A request that waits in the server gives up
-- after a TTL (lock_timeout), so keeping an entry for an hour is enough.
CREATE TABLE fencepost.lease_over (
    incarnation text COLLATE "C" PRIMARY KEY,
    noted_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE fencepost.lease_over IS 'the embedded elector: candidacies that are over, kept for an hour';

-- Everybody may send a notification on a channel whose name is known, and every notification makes
-- each proxy read a lease. So only the control role can read the name.
CREATE TABLE fencepost.lease_channel (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    name text COLLATE "C" NOT NULL
);
INSERT INTO fencepost.lease_channel (name)
    VALUES ('fencepost_lease_' || pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''));

-- lease_tell wakes those who wait for a change of a lease, '' for all leases. All databases of a
-- server share one notification queue, and a transaction that notifies while it is full fails at
-- commit. In that case lease_tell wakes nobody, and the waiters find the change when they next
-- poll.
CREATE FUNCTION fencepost.lease_tell(resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify((SELECT c.name FROM fencepost.lease_channel c), resource);
    END IF;
END $$;

-- lease_listen makes this session listen for changes. The name of the channel does not appear in
-- the statement, which others may see in pg_stat_activity.
CREATE FUNCTION fencepost.lease_listen() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('LISTEN %I', (SELECT c.name FROM fencepost.lease_channel c));
END $$;

-- lease_row locks a resource's lease, and creates it if the resource is new.
CREATE FUNCTION fencepost.lease_row(resource text) RETURNS fencepost.lease
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
    PERFORM fencepost.secure();
    UPDATE fencepost.lease l SET award = award, worker = worker, incarnation = incarnation, vacancy = 'held', renewals = l.renewals + 1,
        ttl = ttl, acquired_at = CASE WHEN l.award = award THEN l.acquired_at ELSE clock_timestamp() END,
        expires_at = clock_timestamp() + ttl
        WHERE l.resource = resource;
    PERFORM fencepost.lease_tell(resource);
END $$;

-- lease_release ends a term; vacancy says why: 'left' or 'silence'. The incarnation that left
-- 'silence' can still change it to 'left'. Award 0 stands for whatever the incarnation holds, or
-- would get by a request that is still in flight: because of the row's lock, either this sees that
-- award, or that request sees that the incarnation is over.
CREATE OR REPLACE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed boolean;
BEGIN
    IF award = 0 THEN
        PERFORM fencepost.lease_row(resource);
        DELETE FROM fencepost.lease_over o WHERE o.incarnation IN (SELECT old.incarnation FROM fencepost.lease_over old
            WHERE old.noted_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED);
        INSERT INTO fencepost.lease_over AS o (incarnation) VALUES (incarnation) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE fencepost.lease l SET vacancy = vacancy, expires_at = clock_timestamp()
        WHERE l.resource = resource AND l.award IN (award, CASE WHEN award = 0 THEN l.award END) AND l.incarnation = incarnation
          AND (l.vacancy = 'held' OR l.vacancy = 'silence' AND vacancy = 'left');
    changed := FOUND;
    IF changed THEN
        PERFORM fencepost.lease_tell(resource);
    END IF;
    RETURN changed;
END $$;

-- lease_bump gives the elector a new instance id and numbers it. Its awards are newer than all
-- earlier ones. Held leases continue until their terms end.
CREATE OR REPLACE FUNCTION fencepost.lease_bump() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh text := gen_random_uuid()::text;
BEGIN
    INSERT INTO fencepost.lease_marker AS m (marker) VALUES (fresh)
        ON CONFLICT (one) DO UPDATE SET marker = excluded.marker;
    PERFORM fencepost.generation('postgres', fresh);
    PERFORM fencepost.lease_tell('');
    RETURN fresh;
END $$;

COMMENT ON TABLE fencepost.generations IS 'the lives of the lease services, numbered as they were first seen, each before the first bid under it; indexes of awards count within one';

-- grant records an award of the lease service and returns its epoch. Once it has returned, no
-- transaction that was checked under a lower epoch commits any more, and all those that did commit
-- are visible.
--
-- The same award again returns the same epoch. Another award to the recorded incarnation keeps the
-- epoch and disturbs nobody. ZF001: another candidacy was granted an epoch since this one held its
-- own. ZF004: the fence is older than what the caller has seen. ZF006: the award is not newer than
-- the recorded one. ZF007: the lease service instance has no number. It is numbered before anybody
-- asks for a lease under it (fencepost.generation), and never here: a late award of an older
-- instance would get a higher number than its successor. All of that is decided before anybody has
-- to wait.
CREATE OR REPLACE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
    held bigint, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    era    bigint;
    rec    fencepost.fence%ROWTYPE;
    after  fencepost.fence%ROWTYPE;
    known  bigint;
    mine   bigint;
    newer  boolean;
BEGIN
    PERFORM fencepost.secure();
    SELECT max(g.number) INTO era FROM fencepost.generations g WHERE g.source = source AND g.marker = marker;
    IF era IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF007',
            MESSAGE = format('the award of fence %s to worker %s is of a life of the lease service %s that has no number here',
                fence, fencepost.quoted(worker), fencepost.quoted(source)),
            HINT = 'Number that life, give the award back, and ask the lease service for another one.';
    END IF;
    rec := fencepost.lock_fence(fence);
    known := fencepost.known_epoch(rec);
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    newer := (era, index) > (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = 'When all workers of the lost epochs have stopped, run: fencepost generation bump';
    ELSIF rec.incarnation = incarnation AND (newer OR (era, index) = (rec.source_generation, rec.source_index)) THEN
        IF rec.epoch IS DISTINCT FROM pg_sequence_last_value(fencepost.sequence_of(fence)) THEN
            RAISE EXCEPTION USING ERRCODE = 'ZF004',
                MESSAGE = format('the fence of resource %s disagrees with itself: the database was restored across a grant', fencepost.quoted(rec.resource)),
                DETAIL = fencepost.detail(rec.resource, worker, incarnation, rec.epoch, known, rec.worker),
                HINT = 'Connect again: the next grant puts it right.';
        END IF;
        -- Write even if nothing changes: only a commit that writes is flushed to disk.
        UPDATE fencepost.fence f SET source = source, source_generation = era, source_index = index WHERE f.id = fence;
        RETURN rec.epoch;
    ELSIF rec.incarnation IS DISTINCT FROM incarnation AND (mine IS NOT NULL OR held > 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001',
            MESSAGE = format('worker %s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
                fencepost.quoted(worker), fencepost.quoted(rec.resource), greatest(mine, held), known, fencepost.holder(rec.worker)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(mine, held), known, rec.worker),
            HINT = 'Stop: what this worker was doing belongs to another now. Connecting again begins anew.';
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = 'If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump';
    END IF;

    after := rec;
    after.epoch := known + 1;
    after.worker := worker;
    after.incarnation := incarnation;
    after.source := source;
    after.source_generation := era;
    after.source_index := index;
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

SELECT fencepost.seal();
