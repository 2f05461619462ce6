-- Orders of an operator. Every proxy obeys them, whatever lease service elects the leader. The proxies look at
-- this table for new ones, so whatever takes the lead from a worker is an order, too.

CREATE TABLE fencepost.orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text COLLATE "C" NOT NULL CHECK (kind IN ('evict', 'pause', 'resume', 'remove', 'prune', 'raise', 'handover')),
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
    order_id  bigint PRIMARY KEY REFERENCES fencepost.orders (id)
);
CREATE UNIQUE INDEX bars_worker ON fencepost.bars (fence, worker) WHERE worker IS NOT NULL;
CREATE UNIQUE INDEX bars_everybody ON fencepost.bars (fence) WHERE worker IS NULL;
COMMENT ON TABLE fencepost.bars IS 'who may not be granted an epoch, by which order; changed under the lock of the fence row';

-- A hand-over makes an offer of the lease to one worker. Until the offer has run out, or a new epoch is
-- recorded, nobody else is granted one. See handover.sql.
CREATE TABLE fencepost.offers (
    fence    integer PRIMARY KEY REFERENCES fencepost.fence (id) ON DELETE CASCADE,
    worker   text COLLATE "C" NOT NULL, -- who may take the lease
    epoch    bigint NOT NULL, -- the recorded epoch when the order was given; the offer is over when there is a higher one
    holder   text COLLATE "C", -- who held that epoch; NULL: nobody
    begins   timestamptz NOT NULL, -- when the leader's proxy stops its worker: every proxy knows the offer by then
    until    timestamptz NOT NULL, -- when anybody may take the lease again
    order_id bigint NOT NULL REFERENCES fencepost.orders (id),
    stopped  timestamptz, -- when the leader's proxy has stopped it; NULL: it has not said so
    taken    timestamptz  -- when the worker could write; NULL: its proxy has not said so
);
COMMENT ON TABLE fencepost.offers IS 'the newest hand-over of each resource; changed under the lock of the fence row, except for stopped and taken, which nothing relies on';

-- barred says which order keeps a worker from being granted an epoch, and how to lift it. what is NULL if none
-- does. shown is the worker's name as quoted returns it. left_ms is how much longer the order counts, NULL if
-- it counts until it is lifted.
CREATE OR REPLACE FUNCTION fencepost.barred(fence integer, shown text, OUT what text, OUT hint text, OUT left_ms bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar   fencepost.bars%ROWTYPE;
    offer fencepost.offers%ROWTYPE;
    given fencepost.orders%ROWTYPE;
    why   text;
    stamp text := 'YYYY-MM-DD HH24:MI:SS "UTC"';
    lift  text;
BEGIN
    SELECT b.* INTO bar FROM fencepost.bars b
        WHERE b.fence = fence AND (b.worker IS NULL OR fencepost.quoted(b.worker) = shown) AND (b.until IS NULL OR b.until > clock_timestamp())
        ORDER BY b.worker NULLS FIRST LIMIT 1;
    IF NOT FOUND THEN
        SELECT o.* INTO offer FROM fencepost.offers o JOIN fencepost.fence f ON f.id = o.fence AND f.epoch = o.epoch
            WHERE o.fence = fence AND o.until > clock_timestamp() AND fencepost.quoted(o.worker) IS DISTINCT FROM shown;
        IF FOUND THEN
            SELECT o.* INTO given FROM fencepost.orders o WHERE o.id = offer.order_id;
            what := format('by order of %s, the resource is handed over to worker %s%s', fencepost.quoted(given.asked_by), fencepost.quoted(offer.worker),
                CASE WHEN given.reason <> '' THEN ', because of ' || fencepost.quoted(given.reason) ELSE '' END);
            hint := format('If that worker has not taken the lead by %s, any worker may.', to_char(offer.until AT TIME ZONE 'UTC', stamp));
            left_ms := ceil(extract(epoch FROM offer.until - clock_timestamp()) * 1000);
        END IF;
        RETURN;
    END IF;
    SELECT o.* INTO given FROM fencepost.orders o WHERE o.id = bar.order_id;
    why := CASE WHEN given.reason <> '' THEN ', because of ' || fencepost.quoted(given.reason) ELSE '' END;
    lift := CASE WHEN fencepost.plain(given.resource) AND fencepost.plain(current_database()) AND fencepost.plain(coalesce(bar.worker, 'everybody'))
        THEN format('run: fencepost resume %s --database %s', given.resource, current_database()) || coalesce(' --worker ' || bar.worker, '')
        ELSE 'run fencepost resume RESOURCE --database DATABASE' || CASE WHEN bar.worker IS NULL THEN '' ELSE ' --worker WORKER' END
            || ', with the names that fencepost resource list shows, quoted for your shell' END;
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

-- note_order records an order. The lock makes the ids visible in their order; it is the last one that the
-- caller's transaction waits for, because others wait for it. A pause ends the offer of its resource, also if
-- nobody leads and the epoch stays the same.
CREATE OR REPLACE FUNCTION fencepost.note_order(kind text, resource text, worker text, until timestamptz, epoch bigint, deleted bigint, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
BEGIN
    PERFORM fencepost.alone();
    INSERT INTO fencepost.orders AS o (kind, resource, worker, until, epoch, deleted, asked_by, reason)
        VALUES (kind, resource, worker, until, epoch, deleted, asked_by, reason) RETURNING o.id INTO id;
    IF kind = 'pause' THEN
        UPDATE fencepost.offers o SET until = least(o.until, clock_timestamp()) FROM fencepost.fence f WHERE f.id = o.fence AND f.resource = resource;
    END IF;
    RETURN id;
END $$;

-- bar keeps a worker (NULL: everybody) from being granted an epoch. It replaces an earlier bar.
CREATE OR REPLACE FUNCTION fencepost.bar(fence integer, worker text, until timestamptz, order_id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM fencepost.bars b WHERE b.fence = fence AND (b.worker IS NOT DISTINCT FROM worker OR b.until <= clock_timestamp());
    INSERT INTO fencepost.bars (fence, worker, until, order_id) VALUES (fence, worker, until, order_id);
END $$;

-- vacate puts a resource under a new epoch that nobody holds, above floor if that is not NULL, and returns that
-- epoch. Whoever held the epoch before is superseded. The caller has locked the row.
--
-- A pause is no newer token, and neither is a raised epoch. So with keep_token the token in force leads again,
-- with a new epoch: the award stays the token's, and the source 'token'. Otherwise the source is 'operator', and
-- the token does not lead again.
CREATE OR REPLACE FUNCTION fencepost.vacate(rec fencepost.fence, floor bigint, keep_token boolean, grace interval, patience interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    after fencepost.fence%ROWTYPE := rec;
BEGIN
    after.epoch := greatest(fencepost.known_epoch(rec), floor) + 1;
    after.worker := NULL;
    after.incarnation := NULL;
    after.source := CASE WHEN keep_token AND rec.source = 'token' THEN rec.source ELSE 'operator' END;
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

-- evict takes the lead from whoever has it or, if worker is not NULL, from that worker alone. If duration is
-- not NULL, that worker may not campaign for so long; a worker that is named may not even if it does not lead.
-- evict returns the id of the order, 0 if there was nothing to do.
--
-- A worker that shares the token in force leads as the recorded one does. An epoch has one end, so the token
-- ends for all. The token in force also ends if nobody leads, because the resource is paused or its epoch was
-- raised.
CREATE OR REPLACE FUNCTION fencepost.evict(fence integer, worker text, duration interval, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec    fencepost.fence%ROWTYPE;
    bearer text; -- who led last, if that is whose token is in force; NULL if the ledger does not say so
    last   bigint; -- the epoch that a worker must lead, or have led, under
    target text;
    leads  boolean;
    epoch  bigint;
    until  timestamptz;
    id     bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF rec.incarnation IS NULL AND rec.source = 'token' THEN
        SELECT g.worker, g.epoch INTO bearer, last FROM fencepost.grants g WHERE g.id = fence AND g.worker IS NOT NULL ORDER BY g.epoch DESC LIMIT 1;
        leads := worker IS NULL OR worker = coalesce(bearer, '');
    ELSE
        last := rec.epoch;
        leads := rec.incarnation IS NOT NULL AND rec.worker = coalesce(worker, rec.worker);
    END IF;
    leads := leads OR (rec.incarnation IS NOT NULL OR bearer IS NOT NULL)
        AND EXISTS (SELECT FROM fencepost.bearers b WHERE b.id = fence AND b.epoch = last AND b.worker = worker);
    target := coalesce(worker, rec.worker, bearer);
    IF NOT leads AND (duration IS NULL OR target IS NULL) THEN
        RETURN 0;
    END IF;
    IF leads THEN
        epoch := fencepost.vacate(rec, NULL, false, grace, patience);
    END IF;
    until := clock_timestamp() + duration;
    id := fencepost.note_order('evict', rec.resource, target, until, epoch, NULL, asked_by, reason);
    IF target IS NOT NULL AND duration IS NOT NULL THEN
        PERFORM fencepost.bar(fence, target, until, id);
    END IF;
    RETURN id;
END $$;

-- pause takes the lead from whoever has it, and keeps everybody from being granted an epoch until resume. It
-- also ends an epoch that only the ledger records. A token stays in force. pause returns the id of the order, 0 if the resource is paused
-- already.
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
        epoch := fencepost.vacate(rec, NULL, true, grace, patience);
    END IF;
    id := fencepost.note_order('pause', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    PERFORM fencepost.bar(fence, NULL, NULL, id);
    RETURN id;
END $$;

-- resume ends the pause of a resource or, if worker is not NULL, lets that worker campaign again. It returns
-- the id of the order, 0 if there was nothing to end.
CREATE OR REPLACE FUNCTION fencepost.resume(fence integer, worker text, asked_by text, reason text)
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

-- raise_epoch puts a resource under an epoch above floor that nobody holds. An operator uses it after a
-- restore. Every former holder is superseded; a token stays in force. A consistent fence that is already above
-- floor is left alone, without an order. floor NULL, for when nobody knows what was lost, means an epoch far
-- above everything recorded here.
CREATE OR REPLACE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    known bigint;
    epoch bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    known := fencepost.known_epoch(rec);
    floor := coalesce(floor, known + 1048576);
    IF known > floor AND rec.epoch = known THEN
        RETURN known;
    END IF;
    epoch := fencepost.vacate(rec, floor, true, grace, patience);
    PERFORM fencepost.note_order('raise', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    RETURN epoch;
END $$;

-- raise_floor is for an operator whose database was restored from an older state, before raise_epoch. Resources
-- may have been lost that were created after that state. When they are created again, they must repeat neither
-- their epochs, which are at most above (NULL: unknown, far above everything recorded here), nor their numbers:
-- a session from before the restore could be registered under it.
CREATE OR REPLACE FUNCTION fencepost.raise_floor(above bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    numbers regclass := pg_get_serial_sequence('fencepost.fence', 'id');
BEGIN
    PERFORM fencepost.secure();
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, coalesce(above, 1048576
        + greatest(l.epoch, (SELECT max(f.epoch) FROM fencepost.fence f), (SELECT max(g.epoch) FROM fencepost.grants g))));
    PERFORM setval(numbers, nextval(numbers) + 1048576);
END $$;

-- in_use says why a resource should not be removed, NULL if nothing is known against it. Only the embedded
-- elector's lease can be seen here; with another one, an hour must do.
CREATE OR REPLACE FUNCTION fencepost.in_use(rec fencepost.fence) RETURNS text
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

-- remove deletes everything that is known of a resource. It first waits, like a grant, until no transaction of
-- the last epoch can commit. Whoever still uses the fence is refused (ZF004): a new fence of that resource has
-- another id. remove returns the id of the order, 0 if there is no such fence. ZF009: the resource is in use,
-- and force is false.
CREATE OR REPLACE FUNCTION fencepost.remove(fence integer, force boolean, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    why   text;
BEGIN
    PERFORM fencepost.secure();
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    why := fencepost.in_use(rec);
    IF why IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009', MESSAGE = format('resource %s was not removed: %s', fencepost.quoted(rec.resource), why),
            HINT = 'Stop its workers first. If you are sure, use --force.';
    END IF;
    epoch := fencepost.vacate(rec, NULL, false, grace, patience);
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, epoch);
    DELETE FROM fencepost.lease l WHERE l.resource = rec.resource;
    DELETE FROM fencepost.running r WHERE r.fence = fence;
    DELETE FROM fencepost.grants g WHERE g.id = fence;
    DELETE FROM fencepost.fence f WHERE f.id = fence; -- and its bars
    RETURN fencepost.note_order('remove', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
END $$;

-- prune deletes the grants of epochs that ended longer than keep ago, and returns how many. It does not go by
-- when they began: a worker that leads for a year and is superseded today must still be recognized tomorrow.
CREATE OR REPLACE FUNCTION fencepost.prune(keep interval, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM fencepost.grants g WHERE EXISTS (
        SELECT FROM fencepost.grants n WHERE n.id = g.id AND n.epoch > g.epoch AND n.granted_at < clock_timestamp() - keep);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted > 0 THEN
        PERFORM fencepost.note_order('prune', NULL, NULL, NULL, NULL, deleted, asked_by, reason);
    END IF;
    RETURN deleted;
END $$;
