-- Grants: what gives an epoch to a worker.

CREATE TABLE fencepost.generations (
    number bigint PRIMARY KEY,
    source text COLLATE "C" NOT NULL,
    marker text COLLATE "C" NOT NULL
);
CREATE INDEX generations_marker ON fencepost.generations (source, marker);
COMMENT ON TABLE fencepost.generations IS 'the instances of the lease services, numbered as they were first seen, each before the first bid under it; indexes of awards count within one';

-- All that bring one token lead under one epoch, and the ledger names only the first of them. Without this
-- table, the others would be told their next epoch when they connect, as if they had never been superseded, and
-- a statement that they send again could be executed.
CREATE TABLE fencepost.bearers (
    id     integer NOT NULL,
    epoch  bigint NOT NULL,
    worker text COLLATE "C" NOT NULL, -- another one than the ledger names
    PRIMARY KEY (id, epoch, worker),
    FOREIGN KEY (id, epoch) REFERENCES fencepost.grants (id, epoch) ON DELETE CASCADE
);
CREATE INDEX bearers_worker ON fencepost.bearers (id, worker);
COMMENT ON TABLE fencepost.bearers IS 'the workers that lead or led under an epoch which was granted to another one, because they have brought the same token';

-- What the proxies say of the grants that they got, for whoever reads the ledger. Nothing relies on it, and a proxy that ends at
-- once says nothing.
CREATE TABLE fencepost.takeovers (
    id    integer NOT NULL,
    epoch bigint NOT NULL,
    proxy text COLLATE "C" NOT NULL, -- through which the worker was connected
    ended text COLLATE "C" NOT NULL CHECK (ended IN ('', 'left', 'silence', 'expired', 'gone')), -- how the term before ended; '': not known
    gap   interval, -- how long no worker was confirmed as the leader before; NULL: not known
    PRIMARY KEY (id, epoch),
    FOREIGN KEY (id, epoch) REFERENCES fencepost.grants (id, epoch) ON DELETE CASCADE
);
COMMENT ON TABLE fencepost.takeovers IS 'through which proxy each epoch was granted, and what the proxy knew of the term before';

-- note_grant records what a proxy says of a grant that it has got. It waits for no disk, as nothing relies on it.
CREATE OR REPLACE FUNCTION fencepost.note_grant(resource text, epoch bigint, proxy text, ended text, gap interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO fencepost.takeovers (id, epoch, proxy, ended, gap) SELECT g.id, g.epoch, proxy, ended, gap
        FROM fencepost.grants g JOIN fencepost.fence f ON f.id = g.id WHERE f.resource = resource AND g.epoch = epoch ON CONFLICT DO NOTHING;
END $$;

-- alone lets one transaction at a time number something in this database, until it ends. It locks a row, because whoever
-- may connect can lock a table.
CREATE OR REPLACE FUNCTION fencepost.alone() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM fencepost.identity i FOR NO KEY UPDATE;
END $$;

-- bump_generation makes a lease service instance the newest one, even if it was seen before: its awards are
-- accepted again, whatever was recorded from others. The operator guarantees that no older award of that
-- instance is still in flight; a new instance id at the lease service is the safer way.
CREATE OR REPLACE FUNCTION fencepost.bump_generation(source text, marker text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    number bigint;
BEGIN
    PERFORM fencepost.alone();
    SELECT 1 + greatest((SELECT max(g.number) FROM fencepost.generations g), (SELECT max(f.source_generation) FROM fencepost.fence f), 0)
        INTO number;
    INSERT INTO fencepost.generations (number, source, marker) VALUES (number, source, marker);
    RETURN number;
END $$;

-- generation returns the number of a lease service instance, and numbers the instance when it is first seen.
CREATE OR REPLACE FUNCTION fencepost.generation(source text, marker text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found_number bigint;
BEGIN
    SELECT max(g.number) INTO found_number FROM fencepost.generations g
        WHERE g.source = source AND g.marker = marker;
    IF found_number IS NULL THEN
        PERFORM fencepost.alone();
        SELECT max(g.number) INTO found_number FROM fencepost.generations g
            WHERE g.source = source AND g.marker = marker;
    END IF;
    IF found_number IS NULL THEN
        found_number := fencepost.bump_generation(source, marker);
    END IF;
    RETURN found_number;
END $$;

-- advance records a new epoch. It waits until no transaction of the old one can commit, and then changes row and ledger
-- together. The grant counts from then on, so granted_at is the time after the wait. The INSERT takes a snapshot of its
-- own, also after the wait. The caller has locked the row by lock_fence.
CREATE OR REPLACE FUNCTION fencepost.advance(before fencepost.fence, after fencepost.fence, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    since timestamptz := clock_timestamp();
BEGIN
    -- This waits for registrations that have begun, while the caller removes what blocks it. If the caller is frozen or
    -- gone, this gives up by itself.
    PERFORM set_config('lock_timeout', format('%sms', ceil(extract(epoch FROM grace + patience) * 1000) + 3000), true);
    PERFORM FROM fencepost.fence f WHERE f.id = before.id FOR UPDATE;
    PERFORM fencepost.drain(before.id, since, grace, patience);
    after.granted_at := clock_timestamp();
    UPDATE fencepost.fence f SET epoch = after.epoch, worker = after.worker, incarnation = after.incarnation, source = after.source,
        source_generation = after.source_generation, source_index = after.source_index, granted_at = after.granted_at
        WHERE f.id = before.id;
    INSERT INTO fencepost.grants SELECT after.*, pg_current_xact_id(), pg_current_snapshot();
END $$;

-- must_be_free fails with ZF008 if an order keeps the worker from leading.
CREATE OR REPLACE FUNCTION fencepost.must_be_free(rec fencepost.fence, worker text, incarnation text, known bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar record;
BEGIN
    SELECT b.* INTO bar FROM fencepost.barred(rec.id, fencepost.quoted(worker)) b;
    IF bar.what IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF008',
            MESSAGE = format('worker %s does not lead resource %s: %s', fencepost.quoted(worker), fencepost.quoted(rec.resource), bar.what),
            DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"current_epoch":%s,"left_ms":%s}', fencepost.quoted(rec.resource),
                fencepost.quoted(worker), fencepost.quoted(incarnation), known, coalesce(bar.left_ms::text, 'null')),
            HINT = bar.hint;
    END IF;
END $$;

-- grant records an award of the lease service and returns its epoch. Once it has returned, no backend that was
-- registered under a lower epoch is left, and all that those have committed is visible.
--
-- The same award again returns the same epoch. Another award to the recorded incarnation keeps the epoch and
-- disturbs nobody; if another worker has brought the same token, grant notes that it shares the epoch. A token
-- that is still in force after a pause, or after its epoch was raised, is granted a new epoch.
--
-- ZF001: another candidacy was granted an epoch since this one held its own. A candidacy that knows of no epoch
-- is not superseded, whatever the ledger has: a grant of its own was cancelled, or its answer was lost, so
-- nobody was told of that epoch. ZF004: the fence is older than what the caller has seen. ZF006: the award is
-- not newer than the recorded one. ZF007: the lease service instance has no number. An instance is numbered
-- before anybody asks for a lease under it (fencepost.generation), and never here: a late award of an older
-- instance would get a higher number than its successor. ZF008: an operator has barred the worker; a candidacy
-- that holds the current epoch keeps it. All of that is decided before anybody has to wait.
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
BEGIN
    PERFORM fencepost.secure();
    SELECT max(g.number) INTO era FROM fencepost.generations g WHERE g.source = source AND g.marker = marker;
    IF era IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF007',
            MESSAGE = format('the award of fence %s to worker %s is of an instance of the lease service %s that has no number here',
                fence, fencepost.quoted(worker), fencepost.quoted(source)),
            HINT = 'Number that instance, give the award back, and ask the lease service for another one.';
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
        -- Write even if nothing changes: only a commit that writes is flushed to disk.
        UPDATE fencepost.fence f SET source = source, source_generation = era, source_index = index WHERE f.id = fence;
        IF rec.worker IS DISTINCT FROM worker THEN
            PERFORM fencepost.must_be_free(rec, worker, incarnation, known);
            INSERT INTO fencepost.bearers (id, epoch, worker) VALUES (fence, rec.epoch, worker) ON CONFLICT DO NOTHING;
        END IF;
        RETURN rec.epoch;
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = format('If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump --database %s',
                fencepost.database_word());
    END IF;

    PERFORM fencepost.must_be_free(rec, worker, incarnation, known);
    after := rec;
    after.epoch := known + 1;
    after.worker := worker;
    after.incarnation := incarnation;
    after.source := source;
    after.source_generation := era;
    after.source_index := index;
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;
