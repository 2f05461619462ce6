-- Orders of an operator: take the lead from a worker, pause a resource, remove one, shorten the
-- ledger. They work through the database, so every proxy obeys them, whichever lease service it
-- uses: the fence refuses what an order forbids, and the orders tell the proxies to look.

-- Ids are in the order of commits: see note_order. Proxies ask for ids above the last that they
-- have seen.
CREATE TABLE fencepost.orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text COLLATE "C" NOT NULL CHECK (kind IN ('evict', 'pause', 'resume', 'remove', 'prune')),
    resource text COLLATE "C", -- NULL: the whole database
    worker   text COLLATE "C", -- whom it concerns or, for pause and remove, who held the epoch; NULL: nobody
    until    timestamptz, -- until when the worker may not campaign; NULL: no such time
    epoch    bigint, -- the epoch that the order gave to nobody; NULL: it left the epoch alone
    deleted  bigint, -- how many grants a prune has deleted
    asked_by text COLLATE "C" NOT NULL, -- as the command says
    role     name NOT NULL DEFAULT session_user, -- as the server knows
    reason   text COLLATE "C" NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE fencepost.orders IS 'what operators have ordered: an audit trail, never changed';

CREATE TABLE fencepost.bars (
    fence     integer NOT NULL REFERENCES fencepost.fence (id) ON DELETE CASCADE,
    worker    text COLLATE "C", -- NULL: everybody
    until     timestamptz, -- NULL: until an operator lifts it
    order_id  bigint NOT NULL REFERENCES fencepost.orders (id)
);
CREATE UNIQUE INDEX bars_worker ON fencepost.bars (fence, worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX bars_everybody ON fencepost.bars (fence) WHERE worker IS NULL;
COMMENT ON TABLE fencepost.bars IS 'who may not be granted an epoch, by which order; changed under the lock of the fence row';

-- No epoch of a removed resource is above this one, and every new resource begins with it. A
-- resource that is removed and made anew therefore does not look as if the database was restored.
CREATE TABLE fencepost.floor (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL
);
INSERT INTO fencepost.floor (epoch) VALUES (0);
COMMENT ON TABLE fencepost.floor IS 'the highest epoch of all removed resources';

-- note_order records an order. The lock makes the ids visible in their order; it is the last one
-- that the caller's transaction waits for, because others wait for it.
CREATE FUNCTION fencepost.note_order(kind text, resource text, worker text, until timestamptz, epoch bigint, deleted bigint, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
BEGIN
    LOCK TABLE fencepost.orders IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO fencepost.orders AS o (kind, resource, worker, until, epoch, deleted, asked_by, reason)
        VALUES (kind, resource, worker, until, epoch, deleted, asked_by, reason) RETURNING o.id INTO id;
    RETURN id;
END $$;

-- barred says which order keeps a worker from being granted an epoch, and how to lift it. what is
-- NULL if none does. shown is the worker's name as quoted returns it. left_ms is how much longer
-- the order counts, NULL if it does until it is lifted.
CREATE FUNCTION fencepost.barred(fence integer, shown text, OUT what text, OUT hint text, OUT left_ms bigint)
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
    lift := format('fencepost resume %s --database %s', fencepost.quoted(given.resource), fencepost.quoted(current_database()));
    IF bar.worker IS NULL THEN
        what := format('%s paused the resource at %s%s', fencepost.quoted(given.asked_by), to_char(given.asked_at AT TIME ZONE 'UTC', stamp), why);
        hint := format('Nobody is granted an epoch of a paused resource. To end the pause, run: %s', lift);
    ELSE
        what := format('by order of %s, it may not campaign until %s%s', fencepost.quoted(given.asked_by),
            to_char(bar.until AT TIME ZONE 'UTC', stamp), why);
        hint := format('To let it campaign earlier, run: %s --worker %s', lift, shown);
    END IF;
    left_ms := ceil(extract(epoch FROM bar.until - clock_timestamp()) * 1000);
END $$;

-- superseded_hint is the hint of ZF001.
CREATE FUNCTION fencepost.superseded_hint(rec fencepost.fence) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN rec.worker IS NULL AND rec.source = 'operator' THEN 'An operator ended the lead of this worker.' ELSE 'Another worker leads.' END
        || ' Stop what this worker was doing. Connect again only to start over from the current state of the database.';
END $$;

-- refuse changes in what it says where an operator is the cause.
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
    own := greatest(held, mine, CASE WHEN told <> cur THEN told END, 0);
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

-- grant changes in one way: it refuses (ZF008) a worker that an operator has barred, just before it
-- would make a new epoch. A candidacy that holds the current epoch keeps it.
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
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    newer := (era, index) > (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = fencepost.restored_hint(greatest(held, floor));
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
            HINT = fencepost.superseded_hint(rec);
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

-- register changes in one way: a new resource begins at the floor. The floor's lock orders this
-- after a removal of the same resource.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
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

-- vacate puts a resource under a new epoch that nobody holds, and returns that epoch. Whoever held
-- the epoch before is superseded. The caller has locked the row.
CREATE FUNCTION fencepost.vacate(rec fencepost.fence, grace interval, patience interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    after fencepost.fence%ROWTYPE := rec;
BEGIN
    after.epoch := fencepost.known_epoch(rec) + 1;
    after.worker := NULL;
    after.incarnation := NULL;
    after.source := 'operator';
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

-- bar keeps a worker (NULL: everybody) from being granted an epoch. It replaces an earlier bar.
CREATE FUNCTION fencepost.bar(fence integer, worker text, until timestamptz, order_id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM fencepost.bars b WHERE b.fence = fence AND (b.worker IS NOT DISTINCT FROM worker OR b.until <= clock_timestamp());
    INSERT INTO fencepost.bars (fence, worker, until, order_id) VALUES (fence, worker, until, order_id);
END $$;

-- evict takes the lead from whoever has it or, if worker is not NULL, from that worker alone. If
-- duration is not NULL, that worker may not campaign for so long; the one that is named may not
-- even if it does not lead. evict returns the id of the order, 0 if there was nothing to do.
CREATE FUNCTION fencepost.evict(fence integer, worker text, duration interval, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec    fencepost.fence%ROWTYPE;
    target text;
    leads  boolean;
    epoch  bigint;
    until  timestamptz;
    id     bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    leads := rec.incarnation IS NOT NULL AND rec.worker = coalesce(worker, rec.worker);
    target := coalesce(worker, rec.worker);
    IF target IS NULL OR NOT leads AND duration IS NULL THEN
        RETURN 0;
    END IF;
    IF leads THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    until := clock_timestamp() + duration;
    id := fencepost.note_order('evict', rec.resource, target, until, epoch, NULL, asked_by, reason);
    IF duration IS NOT NULL THEN
        PERFORM fencepost.bar(fence, target, until, id);
    END IF;
    RETURN id;
END $$;

-- pause takes the lead from whoever has it, and keeps everybody from being granted an epoch until
-- resume. It returns the id of the order, 0 if the resource is paused already.
CREATE FUNCTION fencepost.pause(fence integer, asked_by text, reason text, grace interval, patience interval)
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
    IF rec.incarnation IS NOT NULL THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    id := fencepost.note_order('pause', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    PERFORM fencepost.bar(fence, NULL, NULL, id);
    RETURN id;
END $$;

-- resume ends the pause of a resource or, if worker is not NULL, lets that worker campaign again.
-- It returns the id of the order, 0 if there was nothing to end.
CREATE FUNCTION fencepost.resume(fence integer, worker text, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec  fencepost.fence%ROWTYPE;
    over timestamptz;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    DELETE FROM fencepost.bars b WHERE b.fence = fence AND b.worker IS NOT DISTINCT FROM worker RETURNING b.until INTO over;
    IF NOT FOUND OR over <= clock_timestamp() THEN
        RETURN 0;
    END IF;
    RETURN fencepost.note_order('resume', rec.resource, worker, NULL, NULL, NULL, asked_by, reason);
END $$;

-- in_use says why a resource should not be removed, NULL if nothing is known against it. Only the
-- embedded elector's lease can be seen here; with another one, an hour must do.
CREATE FUNCTION fencepost.in_use(rec fencepost.fence) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM fencepost.bars b WHERE b.fence = rec.id AND b.worker IS NULL) THEN
        RETURN 'it is paused, and would not be when it is made anew';
    ELSIF rec.incarnation IS NULL THEN
        RETURN NULL;
    ELSIF EXISTS (SELECT FROM fencepost.lease l WHERE l.resource = rec.resource AND l.incarnation = rec.incarnation
            AND l.vacancy = 'held' AND l.expires_at > clock_timestamp()) THEN
        RETURN format('%s holds epoch %s and its lease', fencepost.holder(rec.worker), rec.epoch);
    ELSIF rec.granted_at > clock_timestamp() - interval '1 hour' THEN
        RETURN format('%s was granted epoch %s within the last hour', fencepost.holder(rec.worker), rec.epoch);
    END IF;
    RETURN NULL;
END $$;

-- remove deletes everything that is known of a resource. It first waits, like a grant, until no
-- transaction of the last epoch can commit. Whoever still uses the fence is refused (ZF004): a new
-- fence of that resource has another id. remove returns the id of the order, 0 if there is no such
-- fence. ZF009: the resource is in use, and force is false.
CREATE FUNCTION fencepost.remove(fence integer, force boolean, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    why   text;
BEGIN
    PERFORM fencepost.secure();
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    why := fencepost.in_use(rec);
    IF why IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009', MESSAGE = format('resource %s was not removed: %s', fencepost.quoted(rec.resource), why),
            HINT = 'Stop its workers first. If you are sure, use --force.';
    END IF;
    epoch := fencepost.vacate(rec, grace, patience);
    EXECUTE format('DROP SEQUENCE fencepost.%I', 'epoch_' || fence);
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, epoch);
    DELETE FROM fencepost.lease l WHERE l.resource = rec.resource;
    DELETE FROM fencepost.running r WHERE r.fence = fence;
    DELETE FROM fencepost.grants g WHERE g.id = fence;
    DELETE FROM fencepost.fence f WHERE f.id = fence; -- and its bars
    RETURN fencepost.note_order('remove', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
END $$;

-- prune deletes the grants that are older than keep, except the newest of each resource. It returns
-- how many.
CREATE FUNCTION fencepost.prune(keep interval, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM fencepost.grants g WHERE g.granted_at < clock_timestamp() - keep
        AND g.epoch < (SELECT max(n.epoch) FROM fencepost.grants n WHERE n.id = g.id);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted > 0 THEN
        PERFORM fencepost.note_order('prune', NULL, NULL, NULL, NULL, deleted, asked_by, reason);
    END IF;
    RETURN deleted;
END $$;

SELECT fencepost.seal();
