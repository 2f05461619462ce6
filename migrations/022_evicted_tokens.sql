-- evict changes in one way: it also ends the token in force of a resource that nobody leads, because
-- it is paused or its epoch was raised. After that the token does not lead again.
CREATE OR REPLACE FUNCTION fencepost.evict(fence integer, worker text, duration interval, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec    fencepost.fence%ROWTYPE;
    bearer text; -- who led last, if that is whose token is in force; NULL if the ledger does not say so
    target text;
    leads  boolean;
    epoch  bigint;
    until  timestamptz;
    id     bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF rec.incarnation IS NULL AND rec.source = 'token' THEN
        SELECT g.worker INTO bearer FROM fencepost.grants g WHERE g.id = fence AND g.worker IS NOT NULL ORDER BY g.epoch DESC LIMIT 1;
        leads := worker IS NULL OR worker = coalesce(bearer, '');
    ELSE
        leads := rec.incarnation IS NOT NULL AND rec.worker = coalesce(worker, rec.worker);
    END IF;
    target := coalesce(worker, rec.worker, bearer);
    IF NOT leads AND (duration IS NULL OR target IS NULL) THEN
        RETURN 0;
    END IF;
    IF leads THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    until := clock_timestamp() + duration;
    id := fencepost.note_order('evict', rec.resource, target, until, epoch, NULL, asked_by, reason);
    IF target IS NOT NULL AND duration IS NOT NULL THEN
        PERFORM fencepost.bar(fence, target, until, id);
    END IF;
    RETURN id;
END $$;

-- Who uses the id of another worker is not that worker: refusals are counted for each role apart.
ALTER TABLE fencepost.rejections DROP CONSTRAINT rejections_pkey;
ALTER TABLE fencepost.rejections ADD CONSTRAINT rejections_pkey
    PRIMARY KEY (minute, database, resource, worker, login_role, kind, write, sqlstate, fingerprint);

SELECT fencepost.seal();
