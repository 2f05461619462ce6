-- While a token is in force and nobody leads, because the resource is paused or its epoch was raised,
-- a connection that brings this token and knows of no epoch was not superseded: it leads again with
-- the next grant. All that bring one token share an incarnation, so the ledger does not tell who of
-- them led before.

-- granted returns the highest epoch that the ledger has of an incarnation whose connection knows of
-- the epoch known, 0 for none; NULL if there is none, or if it is no reason to refuse it for good.
CREATE OR REPLACE FUNCTION fencepost.granted(rec fencepost.fence, incarnation text, known bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    epoch bigint;
BEGIN
    IF known = 0 AND rec.incarnation IS NULL AND rec.source = 'token'
        AND incarnation = format('token:%s:%s', rec.source_generation, rec.source_index) THEN
        RETURN NULL;
    END IF;
    SELECT max(g.epoch) INTO epoch FROM fencepost.grants g WHERE g.id = rec.id AND g.incarnation = incarnation;
    RETURN epoch;
END $$;

-- refuse changes in two ways: by granted, and it says that an epoch that the worker was just granted
-- is not confirmed yet. Before: that the epoch is held by the worker itself.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := to_regclass('fencepost.epoch_' || fence);
    fresh boolean := current_setting('transaction_isolation') = 'read committed'; -- each statement sees the latest
    cur   bigint;
    rec   fencepost.fence%ROWTYPE;
    mine  bigint; -- the epoch this candidacy has or had, or this connection believes in
    shown text; -- the worker's name, as JSON
    own   bigint; -- the same as mine, but for the current epoch that a connection only claims
    state text;
    what  text;
    who   text;
    hint  text;
    stop  text; -- the order of an operator because of which the worker does not lead
BEGIN
    IF seq IS NOT NULL THEN
        cur := coalesce(pg_sequence_last_value(seq), 0);
    END IF;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF fencepost.holds(rec, cur, told, held, incarnation) AND NOT lapsed THEN
        RETURN NULL;
    END IF;
    told := coalesce(told, 0);
    mine := fencepost.granted(rec, incarnation, greatest(told, held));
    shown := CASE WHEN worker LIKE '"%' THEN worker ELSE fencepost.quoted(worker) END;
    who := CASE WHEN worker IS NULL THEN 'this worker' ELSE 'worker ' || shown END;
    own := greatest(held, CASE WHEN held > 0 AND held < cur AND mine = cur THEN NULL ELSE mine END, CASE WHEN told <> cur THEN told END, 0);
    mine := greatest(told, held, mine, 0);

    IF seq IS NULL OR fresh AND rec.id IS NULL THEN
        state := 'ZF004';
        what := format('fence %s cannot be checked: its row or its sequence is missing', fence);
        hint := 'If an operator removed the resource, connect again. Otherwise run fencepost migrate, and connect again.';
    ELSIF told > cur OR held > cur THEN
        state := 'ZF004';
        what := format('%s was granted epoch %s on resource %s, but the fence only knows epoch %s: the database was restored from an older state',
            who, mine, fencepost.quoted(rec.resource), cur);
        hint := fencepost.restored_hint(mine);
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
    ELSIF own > 0 AND own < cur THEN
        state := 'ZF001';
        what := format('%s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
            who, fencepost.quoted(rec.resource), own, cur,
            CASE WHEN rec.epoch = cur THEN fencepost.holder(rec.worker) ELSE 'another worker' END);
        hint := fencepost.superseded_hint(rec);
    ELSE
        state := 'ZF002';
        SELECT b.what, b.hint INTO stop, hint FROM fencepost.barred(fence, shown) b;
        what := format('%s does not lead resource %s: %s', who, fencepost.quoted(rec.resource),
            CASE WHEN stop IS NOT NULL THEN stop
                 WHEN cur = 0 THEN 'no epoch was granted yet'
                 WHEN rec.incarnation = incarnation AND rec.epoch = cur THEN format('its lease and epoch %s are not confirmed yet', cur)
                 WHEN rec.epoch = cur THEN format('the current epoch %s is held by %s', cur, fencepost.holder(rec.worker))
                 ELSE format('the current epoch %s is held by another worker', cur) END);
        hint := coalesce(hint, CASE WHEN rec.incarnation = incarnation AND rec.epoch = cur THEN 'Retry the transaction.' END,
            'Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait.');
    END IF;

    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
            fencepost.quoted(rec.resource), shown, fencepost.quoted(incarnation),
            CASE state WHEN 'ZF003' THEN cur WHEN 'ZF001' THEN own ELSE mine END, coalesce(cur, 0),
            fencepost.quoted(CASE WHEN rec.epoch = cur THEN rec.worker END));
END $$;

SELECT fencepost.seal();
