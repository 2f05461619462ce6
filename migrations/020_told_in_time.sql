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
    after.source := CASE WHEN rec.source = 'token' THEN rec.source ELSE 'operator' END; -- see pause
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

-- A pause is no newer token, and neither is an epoch that is raised: the one in force leads again,
-- with a new epoch. So the award stays the token's, and nobody has the epoch: the source is token, and
-- the incarnation NULL. After evict the source is operator, and the token does not lead again.

-- vacate with the source to record. Only a token's award outlasts its epoch.
CREATE FUNCTION fencepost.vacate(rec fencepost.fence, source text, grace interval, patience interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    after fencepost.fence%ROWTYPE := rec;
BEGIN
    after.epoch := fencepost.known_epoch(rec) + 1;
    after.worker := NULL;
    after.incarnation := NULL;
    after.source := source;
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

CREATE OR REPLACE FUNCTION fencepost.vacate(rec fencepost.fence, grace interval, patience interval) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT fencepost.vacate(rec, 'operator', grace, patience)
$$;

-- pause changes in one way: a token stays in force.
CREATE OR REPLACE FUNCTION fencepost.pause(fence integer, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    id    bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF EXISTS (SELECT FROM fencepost.bars b WHERE b.fence = fence AND b.worker IS NULL) THEN
        RETURN 0;
    END IF;
    IF rec.incarnation IS NOT NULL OR fencepost.known_epoch(rec) > rec.epoch THEN
        epoch := fencepost.vacate(rec, CASE WHEN rec.source = 'token' THEN rec.source ELSE 'operator' END, grace, patience);
    END IF;
    id := fencepost.note_order('pause', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    PERFORM fencepost.bar(fence, NULL, NULL, id);
    RETURN id;
END $$;

-- superseded_hint is the hint of ZF001. An epoch that nobody holds was given by an operator.
CREATE OR REPLACE FUNCTION fencepost.superseded_hint(rec fencepost.fence) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN rec.worker IS NULL AND rec.source IS NOT NULL THEN 'An operator ended the lead of this worker.' ELSE 'Another worker leads.' END
        || ' Stop what this worker was doing. Connect again only to start over from the current state of the database.';
END $$;

-- grant changes in two ways. The token in force is granted a new epoch after a pause; whoever knows
-- of an epoch from before is superseded all the same. And a candidacy that knows of no epoch is not
-- superseded, whatever the ledger has: a grant of its own was cancelled, or its answer was lost, so
-- nobody was told of that epoch. Its next award counts like that of any other candidacy.
CREATE OR REPLACE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
    held bigint, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    era    bigint;
    rec    fencepost.fence%ROWTYPE;
    after  fencepost.fence%ROWTYPE;
    known  bigint;
    newer  boolean;
    bar    record;
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
    newer := (era, index) > (rec.source_generation, rec.source_index)
        OR rec.incarnation IS NULL AND coalesce(rec.source, '') = 'token' AND source = 'token' AND (era, index) = (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = fencepost.restored_hint(greatest(held, floor));
    ELSIF held > 0 AND (rec.incarnation IS DISTINCT FROM incarnation OR rec.epoch > held) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001',
            MESSAGE = format('worker %s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
                fencepost.quoted(worker), fencepost.quoted(rec.resource), held, known, fencepost.holder(rec.worker)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, held, known, rec.worker),
            HINT = fencepost.superseded_hint(rec);
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
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = 'If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump';
    END IF;

    SELECT b.* INTO bar FROM fencepost.barred(fence, fencepost.quoted(worker)) b;
    IF bar.what IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF008',
            MESSAGE = format('worker %s does not lead resource %s: %s', fencepost.quoted(worker), fencepost.quoted(rec.resource), bar.what),
            DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"current_epoch":%s,"left_ms":%s}', fencepost.quoted(rec.resource),
                fencepost.quoted(worker), fencepost.quoted(incarnation), known, coalesce(bar.left_ms::text, 'null')),
            HINT = bar.hint;
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

-- refuse changes in one way: a token that was granted an epoch again does not hide that the one which
-- its candidacy knows of has ended.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := to_regclass('fencepost.epoch_' || fence);
    fresh boolean := current_setting('transaction_isolation') = 'read committed'; -- each statement sees the latest
    cur   bigint;
    rec   fencepost.fence%ROWTYPE;
    mine  bigint; -- the epoch this candidacy has or had, or this connection believes in
    shown text; -- the worker's name, as JSON
    own   bigint; -- the same as mine, but for the current epoch that a connection only claims
    state text;
    what  text;
    who   text;
    hint  text;
    stop  text; -- the order of an operator because of which the worker does not lead
BEGIN
    IF seq IS NOT NULL THEN
        cur := coalesce(pg_sequence_last_value(seq), 0);
    END IF;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF fencepost.holds(rec, cur, told, held, incarnation) AND NOT lapsed THEN
        RETURN NULL;
    END IF;
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    shown := CASE WHEN worker LIKE '"%' THEN worker ELSE fencepost.quoted(worker) END;
    who := CASE WHEN worker IS NULL THEN 'this worker' ELSE 'worker ' || shown END;
    told := coalesce(told, 0);
    own := greatest(held, CASE WHEN held > 0 AND held < cur AND mine = cur THEN NULL ELSE mine END, CASE WHEN told <> cur THEN told END, 0);
    mine := greatest(told, held, mine, 0);

    IF seq IS NULL OR fresh AND rec.id IS NULL THEN
        state := 'ZF004';
        what := format('fence %s cannot be checked: its row or its sequence is missing', fence);
        hint := 'If an operator removed the resource, connect again. Otherwise run fencepost migrate, and connect again.';
    ELSIF told > cur OR held > cur THEN
        state := 'ZF004';
        what := format('%s was granted epoch %s on resource %s, but the fence only knows epoch %s: the database was restored from an older state',
            who, mine, fencepost.quoted(rec.resource), cur);
        hint := fencepost.restored_hint(mine);
    ELSIF held = cur AND cur > 0 THEN -- nobody was granted since
        IF lapsed THEN
            state := 'ZF002';
            what := format('the lease of %s on resource %s is not confirmed now; it holds epoch %s, and nobody else was granted one',
                who, fencepost.quoted(rec.resource), cur);
            hint := 'Retry the transaction.';
        ELSIF told < cur THEN
            state := 'ZF003';
            what := format('%s has become leader of resource %s with epoch %s since this connection last knew',
                who, fencepost.quoted(rec.resource), cur);
            hint := 'Start over from your first read: what was read before may be old. This connection now knows its epoch, and may write.';
        ELSIF NOT fresh AND coalesce(rec.epoch, 0) < cur THEN
            state := '40001';
            what := format('the snapshot of this transaction is from before the grant of epoch %s on resource %s', cur, fencepost.quoted(rec.resource));
            hint := 'Retry the transaction.';
        ELSE
            state := 'ZF004';
            what := CASE WHEN rec.epoch = cur
                THEN format('epoch %s of resource %s was granted to another candidacy of %s: the database was restored from an older state',
                    cur, fencepost.quoted(rec.resource), fencepost.holder(rec.worker))
                ELSE format('the fence of resource %s disagrees with itself: its row has epoch %s, its sequence %s; the database was restored across a grant',
                    fencepost.quoted(rec.resource), rec.epoch, cur) END;
            hint := 'Connect again: the next grant puts it right.';
        END IF;
    ELSIF own > 0 AND own < cur THEN
        state := 'ZF001';
        what := format('%s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
            who, fencepost.quoted(rec.resource), own, cur,
            CASE WHEN rec.epoch = cur THEN fencepost.holder(rec.worker) ELSE 'another worker' END);
        hint := fencepost.superseded_hint(rec);
    ELSE
        state := 'ZF002';
        SELECT b.what, b.hint INTO stop, hint FROM fencepost.barred(fence, shown) b;
        what := format('%s does not lead resource %s: %s', who, fencepost.quoted(rec.resource),
            CASE WHEN stop IS NOT NULL THEN stop
                 WHEN cur = 0 THEN 'no epoch was granted yet'
                 WHEN rec.epoch = cur THEN format('the current epoch %s is held by %s', cur, fencepost.holder(rec.worker))
                 ELSE format('the current epoch %s is held by another worker', cur) END);
        hint := coalesce(hint, 'Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait.');
    END IF;

    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
            fencepost.quoted(rec.resource), shown, fencepost.quoted(incarnation),
            CASE state WHEN 'ZF003' THEN cur WHEN 'ZF001' THEN own ELSE mine END, coalesce(cur, 0),
            fencepost.quoted(CASE WHEN rec.epoch = cur THEN rec.worker END));
END $$;

-- register changes in one way: it does not wait for the standbys. The grant that follows does, and can
-- say so; a standby that has confirmed the grant has the resource, too. A resource that a failover loses
-- had no epoch that anybody was told of.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'local', true);
    IF NOT pg_is_in_recovery() THEN
        PERFORM fencepost.sweep();
    END IF;
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        PERFORM fencepost.identify();
        SELECT l.epoch INTO STRICT last FROM fencepost.floor l FOR SHARE;
        INSERT INTO fencepost.fence (resource, epoch) VALUES (resource, last) ON CONFLICT DO NOTHING RETURNING id INTO fence;
    END IF;
    IF fence IS NULL THEN -- somebody else made it meanwhile
        SELECT f.id INTO STRICT fence FROM fencepost.fence f WHERE f.resource = resource;
    END IF;
    IF fencepost.sequence_of(fence) IS NULL THEN
        SELECT f.epoch INTO STRICT last FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
        IF fencepost.sequence_of(fence) IS NULL THEN
            EXECUTE format('CREATE SEQUENCE fencepost.%I AS bigint', 'epoch_' || fence);
            PERFORM fencepost.admit(fencepost.sequence_of(fence));
            IF last > 0 THEN
                PERFORM setval(fencepost.sequence_of(fence), last);
            END IF;
        END IF;
    END IF;
    RETURN fence;
END $$;

SELECT fencepost.seal();
