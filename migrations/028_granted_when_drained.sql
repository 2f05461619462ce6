-- Since when a grant counts. It was dated from before the wait for the transactions of the old epoch, which may commit
-- until that wait is over: their rows then seemed to be written after their term had ended.

-- advance changes in one way: granted_at is the time when nothing of the older epochs can commit any more.
CREATE OR REPLACE FUNCTION fencepost.advance(before fencepost.fence, after fencepost.fence, grace interval, patience interval) RETURNS void
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
    after.granted_at := clock_timestamp();
    PERFORM setval(seq, after.epoch);
    UPDATE fencepost.fence f SET epoch = after.epoch, worker = after.worker, incarnation = after.incarnation, source = after.source,
        source_generation = after.source_generation, source_index = after.source_index, granted_at = after.granted_at
        WHERE f.id = before.id;
    INSERT INTO fencepost.grants SELECT after.*, pg_current_xact_id(), pg_current_snapshot();
END $$;

SELECT fencepost.seal();
