-- Guards: triggers that ask whether the session's backend is registered, and stamp the rows that it writes.
--
-- The proxy registers the backend of a leader, and fencepost.claim that of a session that does not use the proxy.
-- Whoever is not registered is refused. The triggers are named ~fencepost, so that they fire last.

-- This is not a column of fence, because the ledger takes its rows as they are. While a resource guards tables,
-- the foreign key keeps it from being removed: its tables could not be written any more.
CREATE TABLE fencepost.guarded (
    fence  integer PRIMARY KEY REFERENCES fencepost.fence (id),
    tables bigint NOT NULL CHECK (tables > 0)
);
COMMENT ON TABLE fencepost.guarded IS 'the resources that guard tables, with the number of those, without partitions and children';

-- A table that is recorded here and has no guard was dropped or made anew, or has lost its triggers, and
-- somebody believes that it is guarded.
CREATE TABLE fencepost.guarded_tables (
    fence    integer NOT NULL REFERENCES fencepost.fence (id),
    name     text NOT NULL,
    relation oid NOT NULL,
    PRIMARY KEY (fence, name)
);
COMMENT ON TABLE fencepost.guarded_tables IS 'the tables that are guarded, or about to be, without partitions and children, by their names and oids when they were recorded';

-- guards lists the guarded tables, and those of their partitions and children that should be guarded with them.
-- writes and truncates say whether the trigger for rows, and the one for TRUNCATE, is there and fires always.
-- own means that the row's trigger is not a copy of a partitioned table's. behind names the triggers that fire
-- after the one that stamps the rows, and so can change the stamp.
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
COMMENT ON VIEW fencepost.guards IS 'the guarded tables with their partitions and children, and whether the triggers of each are in force';

-- refuse, for the trigger of a guarded table whose session's backend is not registered. options are the trigger's
-- arguments: at 0 'refuse' or 'warn', then the roles that are let pass by the name under which they have logged in:
-- functions of others and foreign keys run under other names. If the write may pass, refuse says so in the server's
-- log, and returns. A fence that is not there was lost with the rows of the schema, as in a database that was made from a
-- dump without data: nobody can be registered for it.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, options text[], target oid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec  fencepost.fence%ROWTYPE;
    what text;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    what := format('table %s is guarded by resource %s, and this session is not registered for it', fencepost.quoted(target::regclass::text), fencepost.quoted(rec.resource));
    IF options[0] = 'warn' OR session_user = ANY (options[1:]) THEN
        RAISE LOG USING MESSAGE = format('fencepost: a write of role %s is let pass: %s', fencepost.quoted(session_user), what);
        RETURN;
    END IF;
    IF rec.id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('table %s has a guard whose resource is not in the schema fencepost', fencepost.quoted(target::regclass::text)),
            HINT = 'Guard the table again: fencepost guard add --resource RESOURCE --table TABLE --dsn DSN';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'ZF002', MESSAGE = what, HINT = 'This table is guarded: write through Fencepost as the leader, or call fencepost.claim.',
        DETAIL = fencepost.detail(rec.resource, NULL, NULL, NULL, rec.epoch, rec.worker);
END $$;

-- claim is for a session that does not use the proxy: it registers the session's own backend under this epoch, which
-- somebody has told it who leads, and the next grant ends the backend. In a transaction that is rolled back, the
-- registration is, too. Until the end of the transaction, a grant waits for it.
CREATE OR REPLACE FUNCTION fencepost.claim(resource text, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    since timestamptz;
    super boolean;
    state text;
    what  text;
    hint  text;
BEGIN
    rec := fencepost.pass((SELECT f.id FROM fencepost.fence f WHERE f.resource = resource));
    SELECT a.backend_start, has_table_privilege(a.usesysid, 'pg_authid'::regclass, 'UPDATE') INTO since, super FROM pg_stat_get_activity(pg_backend_pid()) a;
    state := 'ZF004';
    IF rec.id IS NULL THEN
        what := format('there is no resource %s in this database', fencepost.quoted(resource));
        hint := 'SELECT resource, epoch FROM fencepost.status shows all.';
    ELSIF epoch IS NULL OR epoch <= 0 OR epoch > rec.epoch THEN
        what := format('%s is no epoch of resource %s', coalesce(epoch::text, 'NULL'), fencepost.quoted(resource));
        hint := 'SELECT resource, epoch FROM fencepost.status shows the epoch. ' || fencepost.restored_hint(epoch);
    ELSIF epoch < rec.epoch THEN
        state := 'ZF001';
        what := format('epoch %s is over on resource %s: the current epoch %s is held by %s', epoch, fencepost.quoted(resource), rec.epoch, fencepost.holder(rec.worker));
        hint := fencepost.superseded_hint(rec);
    ELSIF since IS NULL OR super AND NOT has_table_privilege('pg_authid'::regclass, 'UPDATE') THEN
        what := format('a grant could not end the backend of role %s', fencepost.quoted(session_user));
        hint := 'Let the job connect as a role that is not a superuser.';
    ELSE
        INSERT INTO fencepost.running (pid, note, backend_start, fence, epoch, claimed)
            SELECT pg_backend_pid(), hashtextextended(gen_random_uuid()::text, 0), since, rec.id, epoch, true WHERE fencepost.registered(rec.id) IS DISTINCT FROM epoch;
        PERFORM set_config('fencepost.registered_' || rec.id, '', true); -- a guard may have let this transaction pass
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = fencepost.detail(resource, NULL, NULL, epoch, rec.epoch, rec.worker);
END $$;

-- write_guard makes a trigger's function, or makes it anew. The function runs with the rights of its owner, because
-- whoever writes has none in this schema, and with the search_path of whoever writes, so every name in it is qualified. It
-- must run nothing that others have made: a stamp whose type is not bigint any more is refused, because another type may
-- run code of the table's owner. What it has found, it remembers for the transaction: the epoch under which the backend is
-- registered, or - and the table in which a backend that is not was let pass.
CREATE OR REPLACE FUNCTION fencepost.write_guard(named text, fence integer, stamp text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', named, format($body$
DECLARE
    head pg_catalog.text := pg_catalog.concat(pg_catalog.pg_current_xact_id(), ':');
    passes pg_catalog.text := pg_catalog.concat('-', TG_RELID);
    found pg_catalog.text := pg_catalog.current_setting('fencepost.registered_%1$s', true);
BEGIN
    found := CASE WHEN pg_catalog.starts_with(found, head) THEN pg_catalog.substr(found, pg_catalog.length(head) OPERATOR(pg_catalog.+) 1) END;
    IF found IS NULL OR pg_catalog.starts_with(found, '-') AND found OPERATOR(pg_catalog.<>) passes THEN
        found := COALESCE(fencepost.registered(%1$s)::pg_catalog.text, passes);
        IF found OPERATOR(pg_catalog.=) passes THEN
            PERFORM fencepost.refuse(%1$s, TG_ARGV, TG_RELID);
        END IF;
        PERFORM pg_catalog.set_config('fencepost.registered_%1$s', head OPERATOR(pg_catalog.||) found, true);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;%2$s
    RETURN NEW;
END
$body$, fence, CASE WHEN stamp IS NOT NULL THEN format($body$
    IF pg_catalog.pg_typeof(NEW.%1$I)::pg_catalog.oid OPERATOR(pg_catalog.<>) 20 THEN
        RAISE EXCEPTION USING ERRCODE = 'datatype_mismatch', MESSAGE = pg_catalog.format('column %%I takes the stamp of a guard, and is no bigint', %1$L),
            HINT = 'ALTER TABLE ... ALTER COLUMN ... TYPE bigint.';
    END IF;
    NEW.%1$I := CASE WHEN found OPERATOR(pg_catalog.<>) passes THEN found::pg_catalog.int8 END;$body$, stamp) ELSE '' END));
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.%I() TO PUBLIC', named);
END $$;

-- make_guard makes a trigger's function, if there is none yet, and returns its name. stamp is the column that
-- takes the epoch, NULL for none.
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

-- lost_guards returns the tables that are recorded as guarded, and are not.
CREATE OR REPLACE FUNCTION fencepost.lost_guards() RETURNS TABLE (resource text, name text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.resource, r.name FROM fencepost.guarded_tables r JOIN fencepost.fence f ON f.id = r.fence
    WHERE NOT EXISTS (SELECT FROM fencepost.guards g WHERE g.fence = r.fence AND (g.relation = r.relation OR g.relation::text = r.name))
    ORDER BY 1, 2
$$;

-- record_guards records the tables that a fence guards, and one more that is about to be guarded, if that is not
-- NULL. It forgets the one of the given name, unless it is guarded. What is recorded otherwise, and has no
-- guard, stays. When nothing is left, it drops the functions. It returns how many tables are recorded.
CREATE OR REPLACE FUNCTION fencepost.record_guards(fence integer, more oid, forget text) RETURNS bigint
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
CREATE OR REPLACE FUNCTION fencepost.unguard(fence integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF EXISTS (SELECT FROM fencepost.guarded g WHERE g.fence = fence) AND NOT EXISTS (SELECT FROM fencepost.guards g WHERE g.fence = fence) THEN
        DELETE FROM fencepost.guarded_tables r WHERE r.fence = fence;
        PERFORM fencepost.record_guards(fence, NULL, NULL);
    END IF;
END $$;
