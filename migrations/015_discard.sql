-- Stale writes can be discarded instead of rejected (on_stale: discard).

-- verdict is refuse for a session whose stale writes are discarded: it returns no row if the session may
-- write. If the candidacy had an epoch and was superseded, verdict makes the transaction read-only,
-- warns, and returns one row. It raises whatever else refuse raises.
--
-- The sequence is locked for the top-level transaction, so the lock outlasts the block that catches the
-- error. The read-only mode is set outside of that block.
CREATE FUNCTION fencepost.verdict(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    what   text;
    detail text;
    hint   text;
BEGIN
    BEGIN
        PERFORM fencepost.refuse(fence, told, worker, incarnation, held, lapsed);
        RETURN;
    EXCEPTION WHEN SQLSTATE 'ZF001' THEN
        GET STACKED DIAGNOSTICS what = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    END;
    IF coalesce(held, 0) = 0 AND NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001', MESSAGE = what, DETAIL = detail, HINT = hint; -- an epoch that it only claims
    END IF;
    PERFORM set_config('transaction_read_only', 'on', true);
    RAISE WARNING USING ERRCODE = 'ZF001', MESSAGE = what || '; what this transaction writes is discarded', DETAIL = detail, HINT = hint;
    RETURN NEXT true;
END $$;

-- undone says that the read-only mode of a stale transaction was undone. It is called where that is
-- so, and fails, because what the transaction has written must be rolled back.
CREATE FUNCTION fencepost.undone() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'ZF001',
        MESSAGE = 'a stale transaction is not read-only any more, and is rolled back',
        HINT = 'A function has undone the read-only mode under which stale writes are discarded. Find out which one runs RESET or SET transaction_read_only.';
END $$;

-- seal changes in one way: the workers may ask for a verdict, and run what discards.
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
        'fencepost.claim(text,bigint)', 'fencepost.verdict(integer,bigint,text,text,bigint,boolean)', 'fencepost.undone()']::regprocedure[]
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
