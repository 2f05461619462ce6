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

SELECT fencepost.seal();
