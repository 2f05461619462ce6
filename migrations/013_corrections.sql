-- Corrections to orders, to the way back after a restore, to the registry, and to what a released
-- lease tells.

-- pause changes in one way: it also ends an epoch that only the sequence or the ledger records, as
-- after the restore of a dump that was taken across a grant.
CREATE OR REPLACE FUNCTION fencepost.pause(fence integer, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    id    bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF EXISTS (SELECT FROM fencepost.bars b WHERE b.fence = fence AND b.worker IS NULL) THEN
        RETURN 0;
    END IF;
    IF rec.incarnation IS NOT NULL OR fencepost.known_epoch(rec) > rec.epoch THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    id := fencepost.note_order('pause', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    PERFORM fencepost.bar(fence, NULL, NULL, id);
    RETURN id;
END $$;

COMMENT ON TABLE fencepost.floor IS 'no new resource begins below this epoch: the highest one of all removed resources, and of those that a restore may have lost';

-- raise_floor is for an operator whose database was restored from an older state, before raise_epoch.
-- Resources may have been lost that were created after that state. When they are created again, they
-- must repeat neither their epochs, which are at most above (NULL: unknown, far above everything
-- recorded here), nor their numbers: a session from before the restore would pass their check.
CREATE FUNCTION fencepost.raise_floor(above bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    numbers regclass := pg_get_serial_sequence('fencepost.fence', 'id');
BEGIN
    PERFORM fencepost.secure();
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, coalesce(above, 1048576
        + greatest(l.epoch, (SELECT max(f.epoch) FROM fencepost.fence f), (SELECT max(g.epoch) FROM fencepost.grants g))));
    PERFORM setval(numbers, nextval(numbers) + 1048576);
END $$;

SELECT fencepost.seal();
