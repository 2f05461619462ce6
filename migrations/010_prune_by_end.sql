-- prune deletes the grants of epochs that ended long ago, and not those that began long ago. A worker
-- that leads for a year and is superseded today must still be recognized tomorrow.
CREATE OR REPLACE FUNCTION fencepost.prune(keep interval, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM fencepost.grants g WHERE EXISTS (
        SELECT FROM fencepost.grants n WHERE n.id = g.id AND n.epoch > g.epoch AND n.granted_at < clock_timestamp() - keep);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted > 0 THEN
        PERFORM fencepost.note_order('prune', NULL, NULL, NULL, NULL, deleted, asked_by, reason);
    END IF;
    RETURN deleted;
END $$;

SELECT fencepost.seal();
