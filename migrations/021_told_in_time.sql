-- Corrections to who is told of a change, and when.

-- Proxies look at the orders, and a healthy leader's proxy at nothing else. So a raised epoch is an
-- order, too.
ALTER TABLE fencepost.orders DROP CONSTRAINT orders_kind_check,
    ADD CONSTRAINT orders_kind_check CHECK (kind IN ('evict', 'pause', 'resume', 'remove', 'prune', 'raise'));

-- raise_epoch puts a resource under an epoch above floor that nobody holds. An operator uses it
-- after a restore. Every former holder is superseded. A consistent fence that is already above
-- floor is left alone, without an order. floor NULL, for when nobody knows what was lost, means an
-- epoch far above everything recorded here.
CREATE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, asked_by text, reason text, grace interval, patience interval)
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
    PERFORM fencepost.note_order('raise', rec.resource, rec.worker, NULL, after.epoch, NULL, asked_by, reason);
    RETURN after.epoch;
END $$;

-- A command from before this migration does not say who gives the order.
CREATE OR REPLACE FUNCTION fencepost.raise_epoch(fence integer, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT fencepost.raise_epoch(fence, floor, session_user::text, '', grace, patience)
$$;

SELECT fencepost.seal();
