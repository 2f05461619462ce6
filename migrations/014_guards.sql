-- Guarded and stamped tables: triggers that compare what a session claims with the fence.
--
-- A session claims an epoch by the setting fencepost.claim_<id of the fence>. The check sets it for
-- its transaction, and fencepost.claim for a session that does not use the proxy. The triggers of a
-- guarded table read the sequence like the check, with the same lock, so a grant waits for every
-- transaction that has written under a claim. They are named ~fencepost, so that they fire last.

-- Not a column of fence, because the ledger takes its rows as they are. While a resource guards
-- tables, the foreign key keeps it from being removed: its tables could not be written any more.
CREATE TABLE fencepost.guarded (
    fence  integer PRIMARY KEY REFERENCES fencepost.fence (id),
    tables bigint NOT NULL CHECK (tables > 0)
);
COMMENT ON TABLE fencepost.guarded IS 'the resources whose checks set a claim, with the number of tables that they guard, without partitions and children';

-- guards lists the guarded tables, and those of their partitions and children that should be guarded
-- with them. writes and truncates say whether the trigger for rows, and the one for TRUNCATE, is
-- there and fires always. own means that the row's trigger is not a copy of a partitioned table's.
CREATE VIEW fencepost.guards AS
    WITH RECURSIVE triggers AS (
        SELECT t.tgrelid, substring(p.proname from '^guard_([0-9]+)')::integer AS fence, t.tgtype & 32 > 0 AS truncates, t.tgenabled = 'A' AS always,
            substring(p.proname from '^guard_[0-9]+_(.*)$') AS stamp, t.tgargs, t.tgparentid = 0 AS own
        FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE p.pronamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = 'fencepost') AND p.proname ~ '^guard_[0-9]+(_|$)'
    ), tree AS (
        SELECT t.tgrelid AS root, t.tgrelid AS relation, t.fence FROM triggers t
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN triggers above ON above.tgrelid = i.inhparent AND above.fence = t.fence WHERE i.inhrelid = t.tgrelid)
        UNION
        SELECT tree.root, i.inhrelid, tree.fence FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relation
    )
    SELECT f.resource, tree.fence, tree.root::regclass AS root, tree.relation::regclass AS relation,
        max(t.stamp) AS stamp, coalesce(min(encode(t.tgargs, 'hex')), '') AS options,
        coalesce(bool_or(NOT t.truncates AND t.always), false) AS writes, coalesce(bool_or(t.truncates AND t.always), false) AS truncates,
        coalesce(bool_or(NOT t.truncates AND t.own), false) AS own
    FROM tree JOIN fencepost.fence f ON f.id = tree.fence LEFT JOIN triggers t ON t.tgrelid = tree.relation AND t.fence = tree.fence
    GROUP BY f.resource, tree.fence, tree.root, tree.relation;
COMMENT ON VIEW fencepost.guards IS 'the guarded tables with their partitions and children, and whether the triggers of each are in force';

-- refuse, for the trigger of a guarded table that does not find the current epoch claimed. options
-- are the trigger's arguments: at 0 'refuse' or 'warn', then the roles that are let pass by the name
-- under which they have logged in: functions of others and foreign keys run under other names. If
-- the write may pass, refuse returns NULL, the stamp of its rows, and says so in the server's log,
-- once for a transaction and table.
--
-- Without a claim it does not read the sequence, so that what is let pass does not hold off a grant.
CREATE FUNCTION fencepost.refuse(fence integer, claim text, options text[], target oid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := fencepost.sequence_of(fence);
    rec   fencepost.fence%ROWTYPE;
    mine  bigint := CASE WHEN claim ~ '^[0-9]{1,18}$' THEN claim::bigint END;
    cur   bigint;
    said  text := 'fencepost.passed_' || fence; -- the last table that was said to be let pass
    named text := fencepost.quoted(target::regclass::text);
    state text;
    what  text;
    hint  text;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF seq IS NULL OR coalesce(claim, '') = '' THEN
        cur := coalesce(rec.epoch, 0);
    ELSE
        cur := coalesce(pg_sequence_last_value(seq), 0);
    END IF;
    IF seq IS NULL THEN
        state := 'ZF004';
        what := format('table %s is guarded by fence %s, whose sequence is missing', named, fence);
        hint := 'Run fencepost migrate, and let a worker of the resource connect.';
    ELSIF coalesce(claim, '') = '' THEN
        state := 'ZF002';
        what := format('table %s is guarded by resource %s, and this session claims no epoch of it', named, fencepost.quoted(rec.resource));
        hint := 'This table is guarded: write through Fencepost, or call fencepost.claim';
    ELSIF mine IS NULL THEN
        state := 'ZF004';
        what := format('table %s is guarded by resource %s, and this session claims %s, which is no epoch', named, fencepost.quoted(rec.resource), fencepost.quoted(claim));
        hint := 'Call fencepost.claim with the epoch under which this session writes.';
    ELSIF mine < cur THEN
        state := 'ZF001';
        what := format('this session was superseded on resource %s, which guards table %s: it claims epoch %s, and the current epoch %s is held by %s',
            fencepost.quoted(rec.resource), named, mine, cur, CASE WHEN rec.epoch = cur THEN fencepost.holder(rec.worker) ELSE 'another worker' END);
        hint := fencepost.superseded_hint(rec);
    ELSIF mine > cur THEN
        state := 'ZF004';
        what := format('this session claims epoch %s on resource %s, which guards table %s, but the fence only knows epoch %s',
            mine, fencepost.quoted(rec.resource), named, cur);
        hint := 'If the session did not invent its epoch, the database was restored from an older state. ' || fencepost.restored_hint(mine);
    ELSE
        state := 'ZF004';
        what := format('table %s is guarded by resource %s, whose sequence role %s may not read', named, fencepost.quoted(rec.resource), fencepost.quoted(session_user));
        hint := 'Name the role by fencepost migrate --worker-role.';
    END IF;

    IF options[0] = 'warn' OR session_user = ANY (options[1:]) THEN
        IF current_setting(said, true) IS DISTINCT FROM target::text THEN
            RAISE LOG USING MESSAGE = format('fencepost: a write of role %s is let pass: %s', fencepost.quoted(session_user), what);
            PERFORM set_config(said, target::text, true);
        END IF;
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = fencepost.detail(rec.resource, NULL, NULL, mine, cur, CASE WHEN rec.epoch = cur THEN rec.worker END);
END $$;

-- claim is for a session that does not use the proxy: until it ends, it writes guarded tables under
-- this epoch, which somebody has told it who leads. The triggers decide whether that is the current
-- one. In a transaction that is rolled back, the claim is, too.
CREATE FUNCTION fencepost.claim(resource text, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
BEGIN
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL OR epoch IS NULL OR epoch <= 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = CASE WHEN fence IS NULL THEN format('there is no resource %s in this database', fencepost.quoted(resource))
                ELSE format('%s is no epoch of resource %s', coalesce(epoch::text, 'NULL'), fencepost.quoted(resource)) END,
            HINT = 'SELECT resource, epoch FROM fencepost.status shows both.';
    END IF;
    PERFORM set_config('fencepost.claim_' || fence, epoch::text, false);
END $$;

-- make_guard makes a trigger's function, if there is none yet, and returns its name. stamp is the
-- column that takes the epoch, NULL for none. The function runs with the rights and the search_path
-- of whoever writes, so every name in it is qualified. Its first line that does anything compares
-- the claim with the fence. It looks for the sequence by its name each time, so that a missing one is
-- refused like everything else.
CREATE FUNCTION fencepost.make_guard(fence integer, stamp text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    named text := 'guard_' || fence || coalesce('_' || stamp, '');
BEGIN
    IF octet_length(named) > 63 THEN
        RAISE EXCEPTION USING ERRCODE = 'name_too_long', MESSAGE = format('the name of column %s is too long for a stamp', fencepost.quoted(stamp)),
            HINT = 'Use a name of at most 40 bytes.';
    END IF;
    IF to_regproc(format('fencepost.%I', named)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql AS %L', named, format($body$
DECLARE
    claim pg_catalog.text := pg_catalog.current_setting('fencepost.claim_%1$s', true);
BEGIN
    IF (claim IS NOT NULL AND claim OPERATOR(pg_catalog.<>) '' AND pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass('fencepost.epoch_%1$s'))::pg_catalog.text OPERATOR(pg_catalog.=) claim) IS NOT TRUE THEN
        claim := fencepost.refuse(%1$s, claim, TG_ARGV, TG_RELID);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;%2$s
    RETURN NEW;
END
$body$, fence, coalesce(chr(10) || '    NEW.' || quote_ident(stamp) || ' := claim;', '')));
        EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.%I() TO PUBLIC', named);
    END IF;
    RETURN named;
END $$;

-- count_guards records how many tables a fence guards, and more that are about to be guarded. For
-- none, it drops the functions.
CREATE FUNCTION fencepost.count_guards(fence integer, more integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    total bigint := more + (SELECT count(DISTINCT g.root) FROM fencepost.guards g WHERE g.fence = fence);
    f     regprocedure;
BEGIN
    IF total > 0 THEN
        INSERT INTO fencepost.guarded AS g (fence, tables) VALUES (fence, total)
            ON CONFLICT ON CONSTRAINT guarded_pkey DO UPDATE SET tables = total WHERE g.tables <> total;
        RETURN total;
    END IF;
    DELETE FROM fencepost.guarded g WHERE g.fence = fence;
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proname ~ format('^guard_%s(_|$)', fence) LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
    RETURN 0;
END $$;

-- The view also says how many tables a resource guards.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT s.resource, s.epoch, s.worker, s.source, s.source_generation, s.source_index, s.granted_at, s.sequence, s.state,
        CASE s.state WHEN 'led' THEN s.granted_at WHEN 'contested' THEN s.acquired_at WHEN 'vacant' THEN s.expires_at END AS state_since,
        CASE WHEN s.held THEN s.expires_at END AS confirmed_until,
        coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence OPERATOR(pg_catalog.=) s.id), 0::bigint) AS guarded_tables
    FROM (
        SELECT f.*, 'fencepost.epoch_'::text OPERATOR(pg_catalog.||) f.id::text AS sequence,
            l.acquired_at, CASE WHEN pg_catalog.isfinite(l.expires_at) THEN l.expires_at END AS expires_at, h.held,
            CASE WHEN h.held AND l.incarnation OPERATOR(pg_catalog.=) f.incarnation THEN 'led'
                WHEN h.held THEN 'contested'
                -- Until the first grant, the lease service is the one that was numbered last.
                WHEN coalesce(f.source, (SELECT g.source FROM fencepost.generations g ORDER BY g.number DESC LIMIT 1), 'postgres') OPERATOR(pg_catalog.=) 'postgres' THEN 'vacant'
                ELSE 'unknown' END AS state
        FROM fencepost.fence f
        LEFT JOIN fencepost.lease l ON l.resource OPERATOR(pg_catalog.=) f.resource
        CROSS JOIN LATERAL (SELECT coalesce(l.vacancy OPERATOR(pg_catalog.=) 'held' AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS held) h
    ) s;

-- seal changes in two ways. The workers may claim. And everybody may call what the triggers of
-- guarded tables call, and use their functions: who makes or attaches a partition makes its triggers.
CREATE OR REPLACE FUNCTION fencepost.seal() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    wanted  text[] := ARRAY(SELECT fencepost.readers());
    gate    regprocedure;
    who     text;
    present regclass;
BEGIN
    GRANT USAGE ON SCHEMA fencepost TO PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA fencepost FROM PUBLIC;
    GRANT SELECT ON fencepost.status TO PUBLIC;
    FOREACH gate IN ARRAY ARRAY['fencepost.refuse(integer,bigint,text,text,bigint,boolean)', 'fencepost.current(bigint,bigint,bigint)',
        'fencepost.claim(text,bigint)']::regprocedure[]
    LOOP
        FOR who IN SELECT quote_ident(pg_get_userbyid(a.grantee)) FROM pg_proc p, aclexplode(p.proacl) a
            WHERE p.oid = gate AND a.grantee NOT IN (0, p.proowner)
        LOOP
            EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s', gate, who);
        END LOOP;
        FOREACH who IN ARRAY wanted LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', gate, who);
        END LOOP;
    END LOOP;
    FOR gate IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace
        AND (p.proname ~ '^guard_[0-9]+(_|$)' OR p.oid = 'fencepost.refuse(integer,text,text[],oid)'::regprocedure)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', gate);
    END LOOP;
    FOR present IN SELECT c.oid::regclass FROM pg_class c
        WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^epoch_[0-9]+$'
    LOOP
        PERFORM fencepost.admit(present);
    END LOOP;
END $$;

SELECT fencepost.seal();
