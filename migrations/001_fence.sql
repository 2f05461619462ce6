-- The fence: one row and one sequence per resource, a ledger of all grants, and
-- the functions that grant, check and refuse.
--
-- Privileges. Everything belongs to the control role, and its functions run with that role's
-- privileges. Everybody may read the sequences and the view status, and call refuse.
-- fencepost.seal() grants exactly that.
--
-- Locks. A checked transaction holds RowExclusive on its resource's sequence until it ends
-- (pg_sequence_last_value takes it). A grant first locks the fence row, then the sequence in
-- ShareRowExclusive (ALTER SEQUENCE). It waits for every transaction that was checked under the old
-- epoch, and every transaction that is checked after it sees the new one.
--
-- Every function pins search_path, so that names and operators resolve to pg_catalog whatever the
-- caller's session has set, and declares how a name that is both a variable and a column is
-- resolved. No literal contains a backslash.

CREATE TABLE fencepost.fence (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource          text COLLATE "C" NOT NULL UNIQUE CHECK (pg_catalog.length(resource) BETWEEN 1 AND 255),
    epoch             bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0), -- 0: nobody was granted one yet
    worker            text COLLATE "C", -- NULL: nobody holds the current epoch
    incarnation       text COLLATE "C",
    source            text COLLATE "C",
    source_generation bigint NOT NULL DEFAULT 0,
    source_index      bigint NOT NULL DEFAULT 0,
    granted_at        timestamptz
);
COMMENT ON TABLE fencepost.fence IS 'the highest grant of each resource; its epoch is also the value of the sequence fencepost.epoch_<id>';

CREATE TABLE fencepost.grants (
    id                integer NOT NULL REFERENCES fencepost.fence (id),
    resource          text COLLATE "C" NOT NULL,
    epoch             bigint NOT NULL,
    worker            text COLLATE "C",
    incarnation       text COLLATE "C",
    source            text COLLATE "C" NOT NULL,
    source_generation bigint NOT NULL,
    source_index      bigint NOT NULL,
    granted_at        timestamptz NOT NULL,
    PRIMARY KEY (id, epoch)
);
CREATE INDEX grants_incarnation ON fencepost.grants (id, incarnation);
CREATE INDEX grants_worker ON fencepost.grants (id, worker);
COMMENT ON TABLE fencepost.grants IS 'the ledger: one row per grant, never changed';

CREATE TABLE fencepost.generations (
    number     bigint PRIMARY KEY,
    source     text COLLATE "C" NOT NULL,
    marker     text COLLATE "C" NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX generations_marker ON fencepost.generations (source, marker);
COMMENT ON TABLE fencepost.generations IS 'the lives of the lease services, numbered as they were first seen; indexes of awards count within one';

-- The table is unlogged. A registration is void when its backend ends, and all backends end in a
-- crash, so losing the table's content in a crash is correct.
CREATE UNLOGGED TABLE fencepost.running (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    fence         integer NOT NULL,
    epoch         bigint NOT NULL,
    noted_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (fence, pid)
);
COMMENT ON TABLE fencepost.running IS 'the registry: backends that may write outside the check now; a grant ends them';

CREATE VIEW fencepost.status AS
    SELECT resource, epoch, worker, source, source_generation, source_index, granted_at FROM fencepost.fence;
COMMENT ON VIEW fencepost.status IS 'who holds the current epoch of each resource; everybody may read it';

-- quoted returns a name as a JSON string of printable ASCII. It is readable in every
-- client_encoding, stays on one line, and cannot terminate the string or be mistaken for the text
-- around it. NULL becomes null.
CREATE FUNCTION fencepost.quoted(value text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    result text := '';
    letter text;
    point  integer;
    escape text := chr(92) || 'u'; -- a backslash in a literal depends on standard_conforming_strings
    known  boolean := getdatabaseencoding() = 'UTF8'
        OR pg_encoding_max_length(pg_char_to_encoding(getdatabaseencoding())) = 1;
BEGIN
    IF value IS NULL THEN
        RETURN 'null';
    END IF;
    FOREACH letter IN ARRAY string_to_array(to_json(left(value, 255))::text, NULL) LOOP
        IF letter COLLATE "C" BETWEEN ' ' AND '~' THEN
            result := result || letter;
        ELSIF NOT known THEN
            result := result || '?';
        ELSE
            point := ascii(letter);
            IF point > 65535 THEN -- a surrogate pair, as JSON writes it
                result := result || escape || to_hex(55296 + (point - 65536) / 1024);
                point := 56320 + (point - 65536) % 1024;
            END IF;
            result := result || escape || lpad(to_hex(point), 4, '0');
        END IF;
    END LOOP;
    RETURN result;
END $$;

-- holder names the holder of an epoch, for the text of an error.
CREATE FUNCTION fencepost.holder(worker text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN worker IS NULL THEN 'nobody' ELSE 'worker ' || fencepost.quoted(worker) END;
END $$;

-- detail returns the one line of JSON that an error carries in DETAIL.
CREATE FUNCTION fencepost.detail(resource text, worker text, incarnation text, epoch bigint, current_epoch bigint, current_worker text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
        fencepost.quoted(resource), fencepost.quoted(worker), fencepost.quoted(incarnation),
        coalesce(epoch, 0), coalesce(current_epoch, 0), fencepost.quoted(current_worker));
END $$;

-- sequence_of returns the sequence that holds a fence's epoch, NULL if it is missing.
CREATE FUNCTION fencepost.sequence_of(fence integer) RETURNS regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN to_regclass(format('fencepost.epoch_%s', fence));
END $$;

-- refuse is the slow path of the check: it determines why a transaction may not go on, and raises
-- the error. It returns NULL if the transaction may go on after all, because its snapshot is of
-- another isolation level but has seen the grant.
--
-- told is the epoch announced to the connection, and held the one that its candidacy was granted, 0
-- for none. lapsed says that the lease is not confirmed. The function writes nothing, takes no
-- transaction id, and reads the sequence before the row, so that the row is at least as recent as
-- the transaction's snapshot allows.
CREATE FUNCTION fencepost.refuse(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := to_regclass('fencepost.epoch_' || fence);
    fresh boolean := current_setting('transaction_isolation') = 'read committed'; -- each statement sees the latest
    cur   bigint;
    rec   fencepost.fence%ROWTYPE;
    mine  bigint; -- the epoch this candidacy has or had
    state text;
    what  text;
    who   text;
    hint  text;
BEGIN
    IF seq IS NOT NULL THEN
        cur := coalesce(pg_sequence_last_value(seq), 0);
    END IF;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF told = cur AND held = cur AND cur > 0 AND rec.epoch = cur AND rec.incarnation = incarnation AND NOT lapsed THEN
        RETURN NULL;
    END IF;
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    who := CASE WHEN worker IS NULL THEN 'this worker' ELSE 'worker ' || fencepost.quoted(worker) END;
    told := coalesce(told, 0);
    mine := greatest(told, held, mine, 0);

    IF seq IS NULL OR fresh AND rec.id IS NULL THEN
        state := 'ZF004';
        what := format('fence %s cannot be checked: its row or its sequence is missing', fence);
        hint := 'Run fencepost migrate, and connect again.';
    ELSIF told > cur OR held > cur THEN
        state := 'ZF004';
        what := format('%s was granted epoch %s on resource %s, but the fence only knows epoch %s: the database was restored from an older state',
            who, mine, fencepost.quoted(rec.resource), cur);
        hint := 'When all workers of the lost epochs have stopped, run: fencepost generation bump';
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
    ELSIF mine > 0 AND mine < cur THEN
        state := 'ZF001';
        what := format('%s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
            who, fencepost.quoted(rec.resource), mine, cur,
            CASE WHEN rec.epoch = cur THEN fencepost.holder(rec.worker) ELSE 'another worker' END);
        hint := 'Stop: what this worker was doing belongs to another now. This connection is over; connecting again begins anew.';
    ELSE
        state := 'ZF002';
        what := format('%s does not lead resource %s: %s', who, fencepost.quoted(rec.resource),
            CASE WHEN cur = 0 THEN 'no epoch was granted yet'
                 WHEN rec.epoch = cur THEN format('the current epoch %s is held by %s', cur, fencepost.holder(rec.worker))
                 ELSE format('the current epoch %s is held by another worker', cur) END);
        hint := 'Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait.';
    END IF;

    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint, DETAIL = fencepost.detail(rec.resource, worker, incarnation,
        CASE WHEN state = 'ZF003' THEN cur ELSE mine END, cur, CASE WHEN rec.epoch = cur THEN rec.worker END);
END $$;

-- register returns the id of a resource's fence, and creates the fence if the resource is new. If
-- the sequence was lost, it is recreated at the row's epoch. Concurrent calls are safe.
CREATE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        INSERT INTO fencepost.fence (resource) VALUES (resource) ON CONFLICT DO NOTHING RETURNING id INTO fence;
    END IF;
    IF fence IS NULL THEN -- somebody else made it meanwhile
        SELECT f.id INTO STRICT fence FROM fencepost.fence f WHERE f.resource = resource;
    END IF;
    IF fencepost.sequence_of(fence) IS NULL THEN
        SELECT f.epoch INTO STRICT last FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
        IF fencepost.sequence_of(fence) IS NULL THEN
            EXECUTE format('CREATE SEQUENCE fencepost.%I AS bigint', 'epoch_' || fence);
            EXECUTE format('GRANT SELECT ON SEQUENCE fencepost.%I TO PUBLIC', 'epoch_' || fence);
            IF last > 0 THEN
                PERFORM setval(fencepost.sequence_of(fence), last);
            END IF;
        END IF;
    END IF;
    RETURN fence;
END $$;

-- generation returns the number of a lease service instance, and numbers the instance when it is
-- first seen.
CREATE FUNCTION fencepost.generation(source text, marker text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found_number bigint;
BEGIN
    SELECT max(g.number) INTO found_number FROM fencepost.generations g
        WHERE g.source = source AND g.marker = marker;
    IF found_number IS NULL THEN
        LOCK TABLE fencepost.generations IN SHARE ROW EXCLUSIVE MODE;
        SELECT max(g.number) INTO found_number FROM fencepost.generations g
            WHERE g.source = source AND g.marker = marker;
    END IF;
    IF found_number IS NULL THEN
        found_number := fencepost.bump_generation(source, marker);
    END IF;
    RETURN found_number;
END $$;

-- bump_generation makes a lease service instance the newest one, even if it was seen before: its
-- awards are accepted again, whatever was recorded from others. The operator guarantees that no
-- older award of that instance is still in flight; a new instance id at the lease service is the
-- safer way.
CREATE FUNCTION fencepost.bump_generation(source text, marker text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    number bigint;
BEGIN
    LOCK TABLE fencepost.generations IN SHARE ROW EXCLUSIVE MODE;
    SELECT 1 + greatest((SELECT max(g.number) FROM fencepost.generations g), (SELECT max(f.source_generation) FROM fencepost.fence f), 0)
        INTO number;
    INSERT INTO fencepost.generations (number, source, marker) VALUES (number, source, marker);
    RETURN number;
END $$;

-- state reads a fence under its sequence's lock. It waits for a grant in progress, so that row and
-- sequence are consistent. It waits for at most wait (NULL: until the grant has ended); last is
-- NULL if that was not enough.
CREATE FUNCTION fencepost.state(fence integer, wait interval, OUT rec fencepost.fence, OUT last bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF wait IS NOT NULL THEN
        PERFORM set_config('lock_timeout', format('%sms', ceil(extract(epoch FROM wait) * 1000)), true);
    END IF;
    BEGIN
        last := coalesce(pg_sequence_last_value(fencepost.sequence_of(fence)), 0);
    EXCEPTION WHEN lock_not_available THEN
        last := NULL;
    END;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF rec.id IS NULL OR fencepost.sequence_of(fence) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('fence %s cannot be used: its row or its sequence is missing', fence),
            HINT = 'Run fencepost migrate, and connect again.';
    END IF;
END $$;

-- enter records that a backend may write outside the check, if epoch is the current one. Because of
-- the sequence's lock, either a grant sees the registration, or the registration sees the grant.
CREATE FUNCTION fencepost.enter(fence integer, pid integer, epoch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cur   bigint := pg_sequence_last_value(fencepost.sequence_of(fence));
    holder fencepost.grants%ROWTYPE;
    since timestamptz;
BEGIN
    IF cur IS DISTINCT FROM epoch THEN
        SELECT g.* INTO holder FROM fencepost.grants g WHERE g.id = fence AND g.epoch = epoch;
        PERFORM fencepost.refuse(fence, epoch, holder.worker, holder.incarnation, epoch, false);
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('fence %s cannot be checked', fence);
    END IF;
    SELECT a.backend_start INTO since FROM pg_stat_get_activity(pid) a WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    IF since IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('backend %s cannot be seen in this database', pid),
            HINT = 'The control role needs pg_read_all_stats.';
    END IF;
    INSERT INTO fencepost.running AS r (pid, backend_start, fence, epoch) VALUES (pid, since, fence, epoch)
        ON CONFLICT ON CONSTRAINT running_pkey DO UPDATE
        SET backend_start = excluded.backend_start, epoch = excluded.epoch, noted_at = excluded.noted_at;
END $$;

-- leave deletes the registration.
CREATE FUNCTION fencepost.leave(fence integer, pid integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = pid;
END $$;

-- drain ends the registered backends and returns when they are gone. They have until grace after
-- since to end on their own, and then patience to disappear. The caller holds the sequence's lock,
-- so no registration can be added.
CREATE FUNCTION fencepost.drain(fence integer, since timestamptz, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    note  record;
    busy  integer;
    fault text;
BEGIN
    LOOP
        busy := 0;
        PERFORM pg_stat_clear_snapshot(); -- pg_stat_activity is cached per transaction
        FOR note IN
            SELECT r.pid, r.backend_start, a.pid IS NOT NULL AND a.backend_start IS NULL AS hidden,
                   a.pid IS NOT NULL AND a.backend_start = r.backend_start AS alive, a.usename, a.application_name
            FROM fencepost.running r LEFT JOIN pg_stat_activity a ON a.pid = r.pid
            WHERE r.fence = fence
        LOOP
            fault := NULL;
            IF note.hidden THEN
                fault := 'whether it is still there cannot be seen: the control role lacks pg_read_all_stats';
            ELSIF NOT note.alive THEN
                DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = note.pid AND r.backend_start = note.backend_start;
                CONTINUE;
            ELSIF clock_timestamp() > since + grace THEN
                BEGIN
                    PERFORM pg_terminate_backend(note.pid);
                EXCEPTION WHEN insufficient_privilege THEN
                    fault := 'the control role may not end it';
                END;
            END IF;
            IF fault IS NULL AND clock_timestamp() > since + grace + patience THEN
                fault := format('it is still there %s after it was ended', patience);
            END IF;
            IF fault IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('backend %s of role %s (application %s) is in the way of a grant: %s',
                    note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name), fault);
            END IF;
            busy := busy + 1;
        END LOOP;
        EXIT WHEN busy = 0;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;

-- advance records a new epoch: it waits until no transaction of the old one can commit, and then
-- changes sequence, row and ledger together. The caller has locked the row.
CREATE FUNCTION fencepost.advance(before fencepost.fence, after fencepost.fence, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    since timestamptz := clock_timestamp();
    seq   regclass := fencepost.sequence_of(before.id);
BEGIN
    -- This waits for the transactions that were checked, while the caller removes what blocks it.
    -- If the caller is frozen or gone, this leaves the queue by itself, because the leader's checks
    -- wait after it.
    PERFORM set_config('lock_timeout', format('%sms', ceil(extract(epoch FROM grace + patience) * 1000) + 3000), true);
    EXECUTE format('ALTER SEQUENCE fencepost.%I RESTART', 'epoch_' || before.id);
    IF before IS DISTINCT FROM (SELECT f FROM fencepost.fence f WHERE f.id = before.id) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('fence %s changed while its row was locked', before.id);
    END IF;
    PERFORM fencepost.drain(before.id, since, grace, patience);
    PERFORM setval(seq, after.epoch);
    UPDATE fencepost.fence f SET epoch = after.epoch, worker = after.worker, incarnation = after.incarnation, source = after.source,
        source_generation = after.source_generation, source_index = after.source_index, granted_at = after.granted_at
        WHERE f.id = before.id;
    INSERT INTO fencepost.grants SELECT after.*;
END $$;

-- secure makes the commit of this transaction wait for the disk (and for the configured standbys),
-- whatever the session's default is. It must be called in the function body: a SET clause of the
-- function would end before the commit.
CREATE FUNCTION fencepost.secure() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'a grant runs in READ COMMITTED';
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local,remote_write}'::pg_catalog.text[]) THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- lock_fence locks a fence's row and returns it.
CREATE FUNCTION fencepost.lock_fence(fence integer) RETURNS fencepost.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec fencepost.fence%ROWTYPE;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
    IF rec.id IS NULL OR fencepost.sequence_of(fence) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('fence %s cannot be used: its row or its sequence is missing', fence),
            HINT = 'Run fencepost migrate, and connect again.';
    END IF;
    RETURN rec;
END $$;

-- known_epoch returns the highest epoch that anything in the database records for a fence. After
-- the restore of a dump taken across a grant it is higher than the row's epoch.
CREATE FUNCTION fencepost.known_epoch(rec fencepost.fence) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(rec.epoch, (SELECT max(g.epoch) FROM fencepost.grants g WHERE g.id = rec.id),
        pg_sequence_last_value(fencepost.sequence_of(rec.id)));
END $$;

-- grant records an award of the lease service and returns its epoch. Once it has returned, no
-- transaction that was checked under a lower epoch commits any more, and all those that did commit
-- are visible.
--
-- The same award again returns the same epoch. Another award to the recorded incarnation keeps the
-- epoch and disturbs nobody. ZF001: another candidacy was granted an epoch since this one held its
-- own. ZF004: the fence is older than what the caller has seen. ZF006: the award is not newer than
-- the recorded one. All of that is decided before anybody has to wait.
CREATE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
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
    era := fencepost.generation(source, marker);
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

-- raise_epoch puts a resource under an epoch above floor that nobody holds. An operator uses it
-- after a restore. Every former holder is superseded. A consistent fence that is already above
-- floor is left alone. floor NULL, for when nobody knows what was lost, means an epoch far above
-- everything recorded here.
CREATE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, grace interval, patience interval)
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
    RETURN after.epoch;
END $$;

-- seal sets all privileges of roles other than the owner, so that it also corrects what a later
-- migration added and what a restore lost.
CREATE FUNCTION fencepost.seal() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    sequence record;
BEGIN
    GRANT USAGE ON SCHEMA fencepost TO PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA fencepost FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION fencepost.refuse(integer, bigint, text, text, bigint, boolean) TO PUBLIC;
    GRANT SELECT ON fencepost.status TO PUBLIC;
    -- Only if it is missing, because a grant in progress changes the same catalog rows.
    FOR sequence IN
        SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^epoch_[0-9]+$'
          AND NOT has_sequence_privilege('public', c.oid, 'SELECT')
    LOOP
        EXECUTE format('GRANT SELECT ON SEQUENCE %s TO PUBLIC', sequence.name);
    END LOOP;
END $$;

SELECT fencepost.seal();
