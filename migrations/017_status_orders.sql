-- The status after an operator's order. The epoch that an order gives to nobody has the source
-- operator, which is no lease service: the lease is where it was before. And the orders that are in
-- force are shown to everybody, also while no worker is connected that would be told of them.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT s.resource, s.epoch, s.worker, s.source, s.source_generation, s.source_index, s.granted_at, s.sequence, s.state,
        CASE s.state WHEN 'led' THEN s.granted_at WHEN 'contested' THEN s.acquired_at WHEN 'vacant' THEN s.expires_at END AS state_since,
        CASE WHEN s.held THEN s.expires_at END AS confirmed_until,
        coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence OPERATOR(pg_catalog.=) s.id), 0::bigint) AS guarded_tables,
        ARRAY(
            SELECT pg_catalog.format('%s%s %s%s',
                CASE WHEN b.worker IS NULL THEN 'paused' ELSE pg_catalog.format('worker %s may not campaign', pg_catalog.to_json(b.worker)) END,
                CASE WHEN b.until IS NOT NULL THEN ' until ' OPERATOR(pg_catalog.||) pg_catalog.to_char(b.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"') END,
                pg_catalog.format('by order of %s of %s', pg_catalog.to_json(o.asked_by), pg_catalog.to_char(o.asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
                CASE WHEN o.reason OPERATOR(pg_catalog.<>) '' THEN ', because of ' OPERATOR(pg_catalog.||) pg_catalog.to_json(o.reason)::text END)
            FROM fencepost.bars b JOIN fencepost.orders o ON o.id OPERATOR(pg_catalog.=) b.order_id
            WHERE b.fence OPERATOR(pg_catalog.=) s.id AND (b.until IS NULL OR b.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())
            ORDER BY b.worker NULLS FIRST
        ) AS orders
    FROM (
        SELECT f.*, 'fencepost.epoch_'::text OPERATOR(pg_catalog.||) f.id::text AS sequence,
            l.acquired_at, CASE WHEN pg_catalog.isfinite(l.expires_at) THEN l.expires_at END AS expires_at, h.held,
            CASE WHEN h.held AND l.incarnation OPERATOR(pg_catalog.=) f.incarnation THEN 'led'
                WHEN h.held THEN 'contested'
                -- While no grant names the lease service, it is the one that was numbered last.
                WHEN coalesce(CASE WHEN f.source OPERATOR(pg_catalog.<>) 'operator' THEN f.source END,
                    (SELECT g.source FROM fencepost.grants g WHERE g.id OPERATOR(pg_catalog.=) f.id AND g.source OPERATOR(pg_catalog.<>) 'operator' ORDER BY g.epoch DESC LIMIT 1),
                    (SELECT g.source FROM fencepost.generations g ORDER BY g.number DESC LIMIT 1), 'postgres') OPERATOR(pg_catalog.=) 'postgres' THEN 'vacant'
                ELSE 'unknown' END AS state
        FROM fencepost.fence f
        LEFT JOIN fencepost.lease l ON l.resource OPERATOR(pg_catalog.=) f.resource
        CROSS JOIN LATERAL (SELECT coalesce(l.vacancy OPERATOR(pg_catalog.=) 'held' AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS held) h
    ) s;
