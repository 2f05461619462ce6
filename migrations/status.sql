-- The status of each resource, which members of pg_monitor may read, also while no proxy runs.
--
-- state is
--   led       the worker that was granted the epoch has its lease, and its proxy says that it leads; a lease of another service
--             is known by its proxy alone
--   paused    an operator keeps everybody from leading
--   handover  an operator has offered the lead to one worker, which has not taken it
--   electing  nobody leads, and somebody has the lease or waits for it
--   idle      nobody leads; a worker is connected, and asks for the lead with its next write
--   blocked   nobody leads, and orders keep each worker that is connected from leading
--   absent    nobody leads, and no worker is connected that could
-- The proxies have said of their workers within the last 15 s. Faults, and what blocks a grant, are known to the proxies only.
--
-- state_since is when the epoch was granted, the lease of the worker that was granted it became free, or the order was given
-- that has begun the state or ended the one before; NULL if the database does not know it, as when somebody has had the lease
-- since without a grant. confirmed_until is until when a lease that the database holds lasts unless it is
-- renewed, by this server's clock. lockers is the xmax of the fence's row, by which
-- its reader can find out which prepared transaction blocks a takeover. orders are the bars and the offer in force, and waiting the workers
-- that campaign and were not granted the epoch. proxy is the one through which the worker that was granted the epoch is
-- connected, and says_led whether that proxy says that it leads, which it does only once the grant is confirmed.
--
-- The view runs with the search_path of its reader, so every name in it is qualified.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT s.resource, s.epoch, s.worker, s.source, s.source_generation, s.source_index, s.granted_at, s.lockers, s.state,
        CASE s.state WHEN 'led' THEN s.granted_at WHEN 'paused' THEN s.paused_at WHEN 'handover' THEN s.offered_at
            ELSE greatest(CASE WHEN s.own AND NOT s.held THEN s.expires_at END, s.vacated_at) END AS state_since,
        CASE WHEN s.held THEN s.expires_at END AS confirmed_until,
        coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence OPERATOR(pg_catalog.=) s.id), 0::bigint) AS guarded_tables,
        ARRAY(
            SELECT pg_catalog.format('%s%s %s%s',
                CASE WHEN b.offered IS NOT NULL THEN pg_catalog.format('handed over to worker %s', pg_catalog.to_json(b.offered))
                    WHEN b.worker IS NULL THEN 'paused' ELSE pg_catalog.format('worker %s may not campaign', pg_catalog.to_json(b.worker)) END,
                CASE WHEN b.until IS NOT NULL THEN CASE WHEN b.offered IS NOT NULL THEN ', if it takes the lead before ' ELSE ' until ' END
                    OPERATOR(pg_catalog.||) pg_catalog.to_char(b.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
                    OPERATOR(pg_catalog.||) CASE WHEN b.offered IS NOT NULL THEN ',' ELSE '' END END,
                pg_catalog.format('by order of %s of %s', pg_catalog.to_json(o.asked_by), pg_catalog.to_char(o.asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')),
                CASE WHEN o.reason OPERATOR(pg_catalog.<>) '' THEN ', because of ' OPERATOR(pg_catalog.||) pg_catalog.to_json(o.reason)::text END)
            FROM (SELECT bar.fence, bar.worker, bar.until, bar.order_id, NULL::text AS offered FROM fencepost.bars bar
                UNION ALL SELECT offer.fence, NULL, offer.until, offer.order_id, offer.worker FROM fencepost.offers offer
                    WHERE offer.epoch OPERATOR(pg_catalog.=) s.epoch) b
            JOIN fencepost.orders o ON o.id OPERATOR(pg_catalog.=) b.order_id
            WHERE b.fence OPERATOR(pg_catalog.=) s.id AND (b.until IS NULL OR b.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())
            ORDER BY b.offered NULLS FIRST, b.worker NULLS FIRST
        ) AS orders,
        ARRAY(
            SELECT DISTINCT c.worker FROM fencepost.candidates c JOIN fencepost.proxies p ON p.id OPERATOR(pg_catalog.=) c.proxy
            WHERE c.resource OPERATOR(pg_catalog.=) s.resource AND c.incarnation IS DISTINCT FROM s.incarnation
                AND p.seen OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '15 seconds'::interval) ORDER BY c.worker
        ) AS waiting,
        s.proxy, s.says_led, s.paused_at IS NOT NULL AS paused
    FROM (
        SELECT f.*, f.xmax AS lockers, CASE WHEN pg_catalog.isfinite(l.expires_at) THEN l.expires_at END AS expires_at, h.held, c.proxy,
            coalesce(c.leads, false) AS says_led, p.at AS paused_at, o.at AS offered_at, l.incarnation OPERATOR(pg_catalog.=) f.incarnation AS own, v.at AS vacated_at,
            -- Whoever has its lease again may wait for a grant, which may be blocked. A proxy says within about a second that its worker leads,
            -- unless the grant waits for a standby.
            CASE WHEN h.held AND l.incarnation OPERATOR(pg_catalog.=) f.incarnation AND (c.leads
                    OR l.acquired_at OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '5 seconds'::interval)
                    OR pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) '')
                OR c.leads AND NOT h.embedded THEN 'led'
                WHEN p.at IS NOT NULL THEN 'paused'
                WHEN o.at IS NOT NULL THEN 'handover'
                WHEN h.held OR c.waits THEN 'electing'
                WHEN c.idles THEN 'idle'
                WHEN c.waits IS NOT NULL THEN 'blocked'
                ELSE 'absent' END AS state
        FROM fencepost.fence f
        LEFT JOIN fencepost.lease l ON l.resource OPERATOR(pg_catalog.=) f.resource
        CROSS JOIN LATERAL (SELECT coalesce(l.vacancy OPERATOR(pg_catalog.=) 'held' AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS held,
            -- While no grant names the lease service, it is the one that was numbered last.
            coalesce(CASE WHEN f.source OPERATOR(pg_catalog.<>) 'operator' THEN f.source END,
                (SELECT g.source FROM fencepost.grants g WHERE g.id OPERATOR(pg_catalog.=) f.id AND g.source OPERATOR(pg_catalog.<>) 'operator' ORDER BY g.epoch DESC LIMIT 1),
                (SELECT g.source FROM fencepost.generations g ORDER BY g.number DESC LIMIT 1), 'postgres') OPERATOR(pg_catalog.=) 'postgres' AS embedded) h
        CROSS JOIN LATERAL (
            -- A worker that leads, as its proxy has said, and does not, waits: it was told of that later, or its proxy is gone.
            SELECT pg_catalog.bool_or(m.incarnation OPERATOR(pg_catalog.=) f.incarnation AND m.state OPERATOR(pg_catalog.=) 'leading') AS leads,
                pg_catalog.bool_or((m.state OPERATOR(pg_catalog.=) 'leading' OR m.state OPERATOR(pg_catalog.=) 'waiting')) AS waits, pg_catalog.bool_or(m.state OPERATOR(pg_catalog.=) 'idle') AS idles,
                pg_catalog.max(m.name) FILTER (WHERE m.incarnation OPERATOR(pg_catalog.=) f.incarnation) AS proxy
            FROM (SELECT k.incarnation, k.state, x.name FROM fencepost.candidates k JOIN fencepost.proxies x ON x.id OPERATOR(pg_catalog.=) k.proxy
                WHERE k.resource OPERATOR(pg_catalog.=) f.resource
                AND x.seen OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '15 seconds'::interval)) m
        ) c
        LEFT JOIN LATERAL (SELECT r.asked_at AS at FROM fencepost.bars b JOIN fencepost.orders r ON r.id OPERATOR(pg_catalog.=) b.order_id
            WHERE b.fence OPERATOR(pg_catalog.=) f.id AND b.worker IS NULL AND (b.until IS NULL OR b.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())) p ON true
        LEFT JOIN LATERAL (SELECT b.begins AS at FROM fencepost.offers b WHERE b.fence OPERATOR(pg_catalog.=) f.id AND b.epoch OPERATOR(pg_catalog.=) f.epoch
            AND b.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) o ON true
        LEFT JOIN (SELECT r.resource, pg_catalog.max(r.asked_at) AS at FROM fencepost.orders r -- that took the lead, or ended a pause
            WHERE r.epoch IS NOT NULL OR r.kind OPERATOR(pg_catalog.=) 'resume' AND r.worker IS NULL GROUP BY r.resource) v ON v.resource OPERATOR(pg_catalog.=) f.resource
    ) s;
COMMENT ON VIEW fencepost.status IS 'who was granted the current epoch of each resource, and whether anybody leads; members of pg_monitor may read it';
