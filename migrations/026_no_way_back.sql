-- Hand-over: a candidacy whose epoch was superseded can never lead again, so it cannot be
-- chosen. Its proxy may say for another second that it campaigns, until it has learnt of that.

-- campaigning changes in one way: it leaves out the candidacies that were superseded.
CREATE OR REPLACE FUNCTION fencepost.campaigning(resource text) RETURNS SETOF fencepost.candidates
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.* FROM fencepost.candidates c JOIN fencepost.proxies p ON p.id = c.proxy JOIN fencepost.fence f ON f.resource = c.resource
        WHERE c.resource = campaigning.resource AND p.seen > clock_timestamp() - interval '15 seconds'
        AND (c.incarnation IS NOT DISTINCT FROM f.incarnation
            OR NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.id = f.id AND g.incarnation = c.incarnation))
$$;

-- handover changes in one way: it says how to end an offer that stands in the way.
CREATE OR REPLACE FUNCTION fencepost.handover(fence integer, worker text, delay interval, length interval, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec    fencepost.fence%ROWTYPE;
    offer  fencepost.offers%ROWTYPE;
    begins timestamptz;
    why    record;
    id     bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF rec.worker = worker AND rec.source <> 'token'
        AND EXISTS (SELECT FROM fencepost.campaigning(rec.resource) c WHERE c.incarnation = rec.incarnation AND NOT c.silent) THEN
        RETURN 0;
    END IF;
    SELECT u.* INTO why FROM fencepost.unchosen(rec, worker) u;
    IF why.what IS NULL THEN
        SELECT o.* INTO offer FROM fencepost.offers o WHERE o.fence = fence AND o.epoch = rec.epoch AND o.until > clock_timestamp();
        IF FOUND AND offer.worker = worker THEN
            RETURN offer.order_id;
        ELSIF FOUND THEN
            SELECT format('by order of %s, it is being handed over to worker %s until %s', fencepost.quoted(o.asked_by), fencepost.quoted(offer.worker),
                to_char(offer.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')) AS what,
                'Wait for the outcome, or end that hand-over with fencepost pause and fencepost resume, and run the command again.' AS hint
                INTO why FROM fencepost.orders o WHERE o.id = offer.order_id;
        END IF;
    END IF;
    IF why.what IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF010', MESSAGE = format('resource %s was not handed over: %s', fencepost.quoted(rec.resource), why.what), HINT = why.hint;
    END IF;
    begins := clock_timestamp() + delay;
    id := fencepost.note_order('handover', rec.resource, worker, begins + length, NULL, NULL, asked_by, reason);
    DELETE FROM fencepost.offers o WHERE o.fence = fence;
    INSERT INTO fencepost.offers (fence, worker, epoch, holder, begins, until, order_id)
        VALUES (fence, worker, rec.epoch, rec.worker, begins, begins + length, id);
    RETURN id;
END $$;

SELECT fencepost.seal();
