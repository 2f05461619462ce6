-- Only the stale writes of a worker that led are discarded, also where several bring one token. All of them share an
-- incarnation, and an order may have kept one of them from leading.

-- verdict changes in one way: the ledger must say of the worker itself that it led.
CREATE OR REPLACE FUNCTION fencepost.verdict(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    shown  text := CASE WHEN worker LIKE '"%' THEN worker ELSE fencepost.quoted(worker) END; -- the worker's name, as JSON
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
    IF coalesce(held, 0) = 0 AND NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation
        AND (fencepost.quoted(g.worker) = shown
            OR EXISTS (SELECT FROM fencepost.bearers b WHERE b.id = g.id AND b.epoch = g.epoch AND fencepost.quoted(b.worker) = shown))) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001', MESSAGE = what, DETAIL = detail, HINT = hint; -- an epoch that it only claims, or that another worker led under
    END IF;
    PERFORM set_config('transaction_read_only', 'on', true);
    RAISE WARNING USING ERRCODE = 'ZF001', MESSAGE = what || '; what this transaction writes is discarded', DETAIL = detail, HINT = hint;
    RETURN NEXT true;
END $$;

SELECT fencepost.seal();
