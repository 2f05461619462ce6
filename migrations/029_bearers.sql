-- Who shares an epoch. All that bring one token lead under one epoch, and the ledger names the first of
-- them only. When that epoch had ended, the others were told their next one at startup, as if they had
-- never been superseded, and a statement that was sent again could be executed.
CREATE TABLE fencepost.bearers (
    id       integer NOT NULL,
    epoch    bigint NOT NULL,
    worker   text COLLATE "C" NOT NULL, -- another one than the ledger names
    began_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (id, epoch, worker),
    FOREIGN KEY (id, epoch) REFERENCES fencepost.grants (id, epoch) ON DELETE CASCADE
);
CREATE INDEX bearers_worker ON fencepost.bearers (id, worker);
COMMENT ON TABLE fencepost.bearers IS 'the workers that lead or led under an epoch which was granted to another one, because they have brought the same token';

-- grant changes in one way: it notes who shares an epoch.
CREATE OR REPLACE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
    held bigint, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    era    bigint;
    rec    fencepost.fence%ROWTYPE;
    after  fencepost.fence%ROWTYPE;
    known  bigint;
    newer  boolean;
    bar    record;
BEGIN
    PERFORM fencepost.secure();
    SELECT max(g.number) INTO era FROM fencepost.generations g WHERE g.source = source AND g.marker = marker;
    IF era IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF007',
            MESSAGE = format('the award of fence %s to worker %s is of a life of the lease service %s that has no number here',
                fence, fencepost.quoted(worker), fencepost.quoted(source)),
            HINT = 'Number that life, give the award back, and ask the lease service for another one.';
    END IF;
    rec := fencepost.lock_fence(fence);
    known := fencepost.known_epoch(rec);
    newer := (era, index) > (rec.source_generation, rec.source_index)
        OR rec.incarnation IS NULL AND coalesce(rec.source, '') = 'token' AND source = 'token' AND (era, index) = (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = fencepost.restored_hint(greatest(held, floor));
    ELSIF held > 0 AND (rec.incarnation IS DISTINCT FROM incarnation OR rec.epoch > held) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001',
            MESSAGE = format('worker %s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
                fencepost.quoted(worker), fencepost.quoted(rec.resource), held, known, fencepost.holder(rec.worker)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, held, known, rec.worker),
            HINT = fencepost.superseded_hint(rec);
    ELSIF rec.incarnation = incarnation AND (newer OR (era, index) = (rec.source_generation, rec.source_index)) THEN
        IF rec.epoch IS DISTINCT FROM pg_sequence_last_value(fencepost.sequence_of(fence)) THEN
            RAISE EXCEPTION USING ERRCODE = 'ZF004',
                MESSAGE = format('the fence of resource %s disagrees with itself: the database was restored across a grant', fencepost.quoted(rec.resource)),
                DETAIL = fencepost.detail(rec.resource, worker, incarnation, rec.epoch, known, rec.worker),
                HINT = 'Connect again: the next grant puts it right.';
        END IF;
        -- Write even if nothing changes: only a commit that writes is flushed to disk.
        UPDATE fencepost.fence f SET source = source, source_generation = era, source_index = index WHERE f.id = fence;
        IF rec.worker IS DISTINCT FROM worker THEN
            INSERT INTO fencepost.bearers (id, epoch, worker) VALUES (fence, rec.epoch, worker) ON CONFLICT DO NOTHING;
        END IF;
        RETURN rec.epoch;
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = 'If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump';
    END IF;

    SELECT b.* INTO bar FROM fencepost.barred(fence, fencepost.quoted(worker)) b;
    IF bar.what IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF008',
            MESSAGE = format('worker %s does not lead resource %s: %s', fencepost.quoted(worker), fencepost.quoted(rec.resource), bar.what),
            DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"current_epoch":%s,"left_ms":%s}', fencepost.quoted(rec.resource),
                fencepost.quoted(worker), fencepost.quoted(incarnation), known, coalesce(bar.left_ms::text, 'null')),
            HINT = bar.hint;
    END IF;

    after := rec;
    after.epoch := known + 1;
    after.worker := worker;
    after.incarnation := incarnation;
    after.source := source;
    after.source_generation := era;
    after.source_index := index;
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

SELECT fencepost.seal();
