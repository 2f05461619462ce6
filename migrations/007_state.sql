-- The view status says whether anybody leads, and not only who was granted the last epoch.
--
-- state is 'led' (the lease of the worker that was granted the epoch is held), 'contested' (somebody
-- else holds the lease), 'vacant' (nobody holds it) or 'unknown' (another lease service has it).
-- confirmed_until is until when a lease that is held lasts unless it is renewed, by this server's
-- clock. state_since is when the epoch was granted, or when the lease was acquired or became free.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT s.resource, s.epoch, s.worker, s.source, s.source_generation, s.source_index, s.granted_at, s.sequence, s.state,
        CASE s.state WHEN 'led' THEN s.granted_at WHEN 'contested' THEN s.acquired_at WHEN 'vacant' THEN s.expires_at END AS state_since,
        CASE WHEN s.held THEN s.expires_at END AS confirmed_until
    FROM (
        SELECT f.*, 'fencepost.epoch_'::text OPERATOR(pg_catalog.||) f.id::text AS sequence,
            l.acquired_at, CASE WHEN pg_catalog.isfinite(l.expires_at) THEN l.expires_at END AS expires_at, h.held,
            CASE WHEN h.held AND l.incarnation OPERATOR(pg_catalog.=) f.incarnation THEN 'led'
                WHEN h.held THEN 'contested'
                -- Until the first grant, the lease service is the one that was numbered last.
                WHEN coalesce(f.source, (SELECT g.source FROM fencepost.generations g ORDER BY g.number DESC LIMIT 1), 'postgres') OPERATOR(pg_catalog.=) 'postgres' THEN 'vacant'
                ELSE 'unknown' END AS state
        FROM fencepost.fence f
        LEFT JOIN fencepost.lease l ON l.resource OPERATOR(pg_catalog.=) f.resource
        CROSS JOIN LATERAL (SELECT coalesce(l.vacancy OPERATOR(pg_catalog.=) 'held' AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS held) h
    ) s;
COMMENT ON VIEW fencepost.status IS 'who was granted the current epoch of each resource, and whether anybody leads; everybody may read it';

SELECT fencepost.seal();
