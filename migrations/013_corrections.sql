-- Corrections to orders, to the way back after a restore, to the registry, and to what a released
-- lease tells.

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
