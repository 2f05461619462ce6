-- Corrections of the guards.

-- refuse changes in two ways. A session whose current role may not read the sequence passes with the
-- current epoch, if the role that has logged in may read it: foreign keys and functions with SECURITY
-- DEFINER write under the names of owners, who need not be workers. And for a role that is no
-- worker's, it does not read the sequence, so that such a role cannot hold off a grant.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, claim text, options text[], target oid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := fencepost.sequence_of(fence);
    may   boolean := has_sequence_privilege(session_user, seq::oid, 'SELECT');
    rec   fencepost.fence%ROWTYPE;
    mine  bigint := CASE WHEN claim ~ '^[0-9]{1,18}$' THEN claim::bigint END;
    cur   bigint;
    said  text := 'fencepost.passed_' || fence; -- the last table that was said to be let pass
    named text := fencepost.quoted(target::regclass::text);
    state text;
    what  text;
    hint  text;
BEGIN
    IF may AND coalesce(claim, '') <> '' THEN
        cur := pg_sequence_last_value(seq);
        IF cur::text = claim THEN
            RETURN claim;
        END IF;
    END IF;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    cur := coalesce(cur, rec.epoch, 0);
    IF seq IS NULL THEN
        state := 'ZF004';
        what := format('table %s is guarded by fence %s, whose sequence is missing', named, fence);
        hint := 'Run fencepost migrate, and let a worker of the resource connect.';
    ELSIF coalesce(claim, '') = '' THEN
        state := 'ZF002';
        what := format('table %s is guarded by resource %s, and this session claims no epoch of it', named, fencepost.quoted(rec.resource));
        hint := 'This table is guarded: write through Fencepost, or call fencepost.claim';
    ELSIF NOT may THEN
        state := 'ZF004';
        what := format('table %s is guarded by resource %s, whose sequence role %s may not read', named, fencepost.quoted(rec.resource), fencepost.quoted(session_user));
        hint := 'Name the role by fencepost migrate --worker-role.';
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
        what := format('table %s is guarded by resource %s, and this session claims %s, which is no epoch', named, fencepost.quoted(rec.resource), fencepost.quoted(claim));
        hint := 'Call fencepost.claim with the epoch under which this session writes.';
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

-- write_guard makes a trigger's function, or makes it anew. The function runs with the rights and the
-- search_path of whoever writes, so every name in it is qualified. It reads the sequence itself, if
-- its role may, because that is quicker. It must not run with the rights of its owner: the type of
-- the stamp's column may run code of the table's owner. It looks for the sequence by its name each
-- time, so that a missing one is refused like everything else.
CREATE FUNCTION fencepost.write_guard(named text, fence integer, stamp text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql AS %L', named, format($body$
DECLARE
    claim pg_catalog.text := pg_catalog.current_setting('fencepost.claim_%1$s', true);
    seq pg_catalog.regclass := pg_catalog.to_regclass('fencepost.epoch_%1$s');
BEGIN
    IF (claim IS NOT NULL AND claim OPERATOR(pg_catalog.<>) '' AND pg_catalog.has_sequence_privilege(seq::pg_catalog.oid, 'SELECT')
        AND pg_catalog.pg_sequence_last_value(seq)::pg_catalog.text OPERATOR(pg_catalog.=) claim) IS NOT TRUE THEN
        claim := fencepost.refuse(%1$s, claim, TG_ARGV, TG_RELID);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;%2$s
    RETURN NEW;
END
$body$, fence, coalesce(chr(10) || '    NEW.' || quote_ident(stamp) || ' := claim;', '')));
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.%I() TO PUBLIC', named);
END $$;

-- make_guard makes a trigger's function, if there is none yet, and returns its name. stamp is the
-- column that takes the epoch, NULL for none.
CREATE OR REPLACE FUNCTION fencepost.make_guard(fence integer, stamp text) RETURNS text
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
        PERFORM fencepost.write_guard(named, fence, stamp);
    END IF;
    RETURN named;
END $$;

SELECT fencepost.write_guard(p.proname, m[1]::integer, m[2])
    FROM pg_proc p, regexp_match(p.proname, '^guard_([0-9]+)(?:_(.*))?$') m
    WHERE p.pronamespace = 'fencepost'::regnamespace AND m IS NOT NULL;

-- Not a count alone: what is recorded here and has no guard was dropped or made anew, or has lost its
-- triggers, and somebody believes that it is guarded.
CREATE TABLE fencepost.guarded_tables (
    fence    integer NOT NULL REFERENCES fencepost.fence (id),
    name     text NOT NULL,
    relation oid NOT NULL,
    PRIMARY KEY (fence, name)
);
COMMENT ON TABLE fencepost.guarded_tables IS 'the tables that are guarded, or about to be, without partitions and children, by their names and oids when they were recorded';

-- guards gets one column: the triggers that fire behind the one that stamps the rows, and so can
-- change the stamp.
CREATE OR REPLACE VIEW fencepost.guards AS
    WITH RECURSIVE triggers AS (
        SELECT t.tgrelid, substring(p.proname from '^guard_([0-9]+)')::integer AS fence, t.tgtype & 32 > 0 AS truncates, t.tgenabled = 'A' AS always,
            substring(p.proname from '^guard_[0-9]+_(.*)$') AS stamp, t.tgargs, t.tgparentid = 0 AS own, t.tgname
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
        coalesce(bool_or(NOT t.truncates AND t.own), false) AS own,
        ARRAY(SELECT b.tgname::text FROM pg_catalog.pg_trigger b JOIN triggers s ON s.tgrelid = b.tgrelid
            WHERE b.tgrelid = tree.relation AND s.fence = tree.fence AND s.stamp IS NOT NULL AND b.tgname > s.tgname
                AND b.tgtype & 3 = 3 AND b.tgtype & 20 > 0 AND b.tgenabled <> 'D' ORDER BY b.tgname) AS behind
    FROM tree JOIN fencepost.fence f ON f.id = tree.fence LEFT JOIN triggers t ON t.tgrelid = tree.relation AND t.fence = tree.fence
    GROUP BY f.resource, tree.fence, tree.root, tree.relation;

-- lost_guards returns the tables that are recorded as guarded, and are not.
CREATE FUNCTION fencepost.lost_guards() RETURNS TABLE (resource text, name text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.resource, r.name FROM fencepost.guarded_tables r JOIN fencepost.fence f ON f.id = r.fence
    WHERE NOT EXISTS (SELECT FROM fencepost.guards g WHERE g.fence = r.fence AND (g.relation = r.relation OR g.relation::text = r.name))
    ORDER BY 1, 2
$$;

-- record_guards records the tables that a fence guards, and one more that is about to be guarded, if
-- that is not NULL. It forgets the one of the given name, unless it is guarded. What is recorded
-- otherwise, and has no guard, stays. When nothing is left, it drops the functions. It returns how
-- many tables are recorded.
CREATE FUNCTION fencepost.record_guards(fence integer, more oid, forget text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    total bigint;
    f     regprocedure;
BEGIN
    -- Its row is locked first, so that who comes second sees what the first has recorded.
    INSERT INTO fencepost.guarded AS g (fence, tables) VALUES (fence, 1) ON CONFLICT ON CONSTRAINT guarded_pkey DO UPDATE SET tables = g.tables;
    DELETE FROM fencepost.guarded_tables r WHERE r.fence = fence
        AND (r.name = forget OR EXISTS (SELECT FROM fencepost.guards g WHERE g.fence = fence AND g.relation = r.relation));
    INSERT INTO fencepost.guarded_tables AS r (fence, name, relation)
        SELECT fence, g.root::text, g.root FROM fencepost.guards g WHERE g.fence = fence
        UNION SELECT fence, more::regclass::text, more WHERE more IS NOT NULL
        ON CONFLICT ON CONSTRAINT guarded_tables_pkey DO UPDATE SET relation = excluded.relation;
    SELECT count(*) INTO total FROM fencepost.guarded_tables r WHERE r.fence = fence;
    IF total > 0 THEN
        UPDATE fencepost.guarded g SET tables = total WHERE g.fence = fence;
        RETURN total;
    END IF;
    DELETE FROM fencepost.guarded g WHERE g.fence = fence;
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proname ~ format('^guard_%s(_|$)', fence) LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
    RETURN 0;
END $$;

-- unguard forgets the tables that are recorded as guarded by a fence, if none is.
CREATE FUNCTION fencepost.unguard(fence integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF EXISTS (SELECT FROM fencepost.guarded g WHERE g.fence = fence) AND NOT EXISTS (SELECT FROM fencepost.guards g WHERE g.fence = fence) THEN
        DELETE FROM fencepost.guarded_tables r WHERE r.fence = fence;
        PERFORM fencepost.record_guards(fence, NULL, NULL);
    END IF;
END $$;

DROP FUNCTION fencepost.count_guards(integer, integer);
SELECT fencepost.record_guards(x.fence, NULL, NULL) FROM (SELECT g.fence FROM fencepost.guarded g UNION SELECT g.fence FROM fencepost.guards g) x;

SELECT fencepost.seal();
