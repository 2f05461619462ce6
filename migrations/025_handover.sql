-- Hand-over: an operator chooses who leads next. The order makes an offer of the lease to one worker.
-- Until it has run out, or a new epoch is recorded, nobody else is granted one. The leader's proxy stops
-- its worker and releases the lease, and the chosen worker gets it as it gets any lease that is free: a
-- new award, and a grant. Nothing here makes an epoch.
--
-- Proxies from before this migration obey the fence, as they do for a worker that is barred. They do
-- not stop a leader for a hand-over, and they do not say who campaigns through them.
ALTER TABLE fencepost.orders DROP CONSTRAINT orders_kind_check,
    ADD CONSTRAINT orders_kind_check CHECK (kind IN ('evict', 'pause', 'resume', 'remove', 'prune', 'raise', 'handover'));

CREATE TABLE fencepost.offers (
    fence    integer PRIMARY KEY REFERENCES fencepost.fence (id) ON DELETE CASCADE,
    worker   text COLLATE "C" NOT NULL, -- who may take the lease
    epoch    bigint NOT NULL, -- the recorded epoch when the order was given; the offer is over when there is a higher one
    holder   text COLLATE "C", -- who held that epoch; NULL: nobody
    begins   timestamptz NOT NULL, -- when the leader's proxy stops its worker: every proxy knows the offer by then
    until    timestamptz NOT NULL, -- when anybody may take the lease again
    order_id bigint NOT NULL REFERENCES fencepost.orders (id),
    stopped  timestamptz, -- when the leader's proxy has stopped it; NULL: it has not said so
    taken    timestamptz  -- when the worker could write; NULL: its proxy has not said so
);
COMMENT ON TABLE fencepost.offers IS 'the newest hand-over of each resource; changed under the lock of the fence row, except for stopped and taken, which nothing relies on';

-- Who campaigns, as each proxy says. It is written in batches, at most once a second by each proxy, and
-- without waiting for the disk. Nothing but the refusal of a hand-over and what is shown rests on it.
CREATE TABLE fencepost.proxies (
    id       text COLLATE "C" PRIMARY KEY, -- random; a proxy that starts again has another one
    name     text COLLATE "C" NOT NULL,
    revision bigint NOT NULL, -- counts the batches; a proxy whose last batch was lost writes everything again
    seen     timestamptz NOT NULL
);
COMMENT ON TABLE fencepost.proxies IS 'the proxies through which workers campaign in this database; one that has not been seen for 15 s is gone';

CREATE TABLE fencepost.candidates (
    proxy       text COLLATE "C" NOT NULL REFERENCES fencepost.proxies (id) ON DELETE CASCADE,
    incarnation text COLLATE "C" NOT NULL,
    resource    text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL,
    silent      boolean NOT NULL, -- it shows no activity, and would not take a lease
    since       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (proxy, incarnation)
);
CREATE INDEX candidates_resource ON fencepost.candidates (resource, worker);
COMMENT ON TABLE fencepost.candidates IS 'the candidacies of each proxy that campaign, with the one that leads';

-- note_candidates records who campaigns through a proxy, and that the proxy is there. whole replaces
-- everything that was known of it; otherwise known is the revision on which the changes rest. It returns
-- the new revision, NULL if that was not the last one. The arrays have an element for each candidacy.
CREATE FUNCTION fencepost.note_candidates(proxy text, name text, known bigint, whole boolean,
    incarnations text[], resources text[], workers text[], silences boolean[], gone text[])
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    revision bigint;
    one      CONSTANT bigint := CASE WHEN cardinality(incarnations) + cardinality(gone) > 0 THEN 1 ELSE 0 END;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM fencepost.proxies p WHERE p.id IN (SELECT old.id FROM fencepost.proxies old
        WHERE old.seen < clock_timestamp() - interval '1 minute' AND old.id <> proxy FOR UPDATE SKIP LOCKED);
    IF whole THEN
        INSERT INTO fencepost.proxies AS p (id, name, revision, seen) VALUES (proxy, name, 1, clock_timestamp())
            ON CONFLICT (id) DO UPDATE SET revision = p.revision + 1, seen = excluded.seen RETURNING p.revision INTO revision;
        DELETE FROM fencepost.candidates c WHERE c.proxy = proxy;
    ELSE
        UPDATE fencepost.proxies p SET revision = p.revision + one, seen = clock_timestamp()
            WHERE p.id = proxy AND p.revision = known RETURNING p.revision INTO revision;
        IF revision IS NULL THEN
            RETURN NULL;
        END IF;
        DELETE FROM fencepost.candidates c WHERE c.proxy = proxy AND c.incarnation = ANY (gone);
    END IF;
    INSERT INTO fencepost.candidates AS c (proxy, incarnation, resource, worker, silent)
        SELECT proxy, n.incarnation, n.resource, n.worker, n.silent
        FROM unnest(incarnations, resources, workers, silences) n (incarnation, resource, worker, silent)
        ON CONFLICT ON CONSTRAINT candidates_pkey DO UPDATE SET silent = excluded.silent;
    RETURN revision;
END $$;

-- campaigning returns the candidacies for a resource of the proxies that are there.
CREATE FUNCTION fencepost.campaigning(resource text) RETURNS SETOF fencepost.candidates
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.* FROM fencepost.candidates c JOIN fencepost.proxies p ON p.id = c.proxy
        WHERE c.resource = campaigning.resource AND p.seen > clock_timestamp() - interval '15 seconds'
$$;

-- note_order changes in one way: a pause ends the offer of a resource that nobody leads, whose epoch it
-- does not change.
CREATE OR REPLACE FUNCTION fencepost.note_order(kind text, resource text, worker text, until timestamptz, epoch bigint, deleted bigint, asked_by text, reason text)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
BEGIN
    LOCK TABLE fencepost.orders IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO fencepost.orders AS o (kind, resource, worker, until, epoch, deleted, asked_by, reason)
        VALUES (kind, resource, worker, until, epoch, deleted, asked_by, reason) RETURNING o.id INTO id;
    IF kind = 'pause' THEN
        UPDATE fencepost.offers o SET until = least(o.until, clock_timestamp()) FROM fencepost.fence f WHERE f.id = o.fence AND f.resource = resource;
    END IF;
    RETURN id;
END $$;

-- barred changes in one way: a resource that is offered to one worker is not granted to another.
CREATE OR REPLACE FUNCTION fencepost.barred(fence integer, shown text, OUT what text, OUT hint text, OUT left_ms bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar   fencepost.bars%ROWTYPE;
    offer fencepost.offers%ROWTYPE;
    given fencepost.orders%ROWTYPE;
    why   text;
    stamp text := 'YYYY-MM-DD HH24:MI:SS "UTC"';
    lift  text;
BEGIN
    SELECT b.* INTO bar FROM fencepost.bars b
        WHERE b.fence = fence AND (b.worker IS NULL OR fencepost.quoted(b.worker) = shown) AND (b.until IS NULL OR b.until > clock_timestamp())
        ORDER BY b.worker NULLS FIRST LIMIT 1;
    IF NOT FOUND THEN
        SELECT o.* INTO offer FROM fencepost.offers o JOIN fencepost.fence f ON f.id = o.fence AND f.epoch = o.epoch
            WHERE o.fence = fence AND o.until > clock_timestamp() AND fencepost.quoted(o.worker) IS DISTINCT FROM shown;
        IF FOUND THEN
            SELECT o.* INTO given FROM fencepost.orders o WHERE o.id = offer.order_id;
            what := format('by order of %s, the resource is handed over to worker %s%s', fencepost.quoted(given.asked_by), fencepost.quoted(offer.worker),
                CASE WHEN given.reason <> '' THEN ', because of ' || fencepost.quoted(given.reason) ELSE '' END);
            hint := format('If that worker has not taken the lead by %s, any worker may.', to_char(offer.until AT TIME ZONE 'UTC', stamp));
            left_ms := ceil(extract(epoch FROM offer.until - clock_timestamp()) * 1000);
        END IF;
        RETURN;
    END IF;
    SELECT o.* INTO given FROM fencepost.orders o WHERE o.id = bar.order_id;
    why := CASE WHEN given.reason <> '' THEN ', because of ' || fencepost.quoted(given.reason) ELSE '' END;
    lift := CASE WHEN fencepost.plain(given.resource) AND fencepost.plain(current_database()) AND fencepost.plain(coalesce(bar.worker, 'everybody'))
        THEN format('run: fencepost resume %s --database %s', given.resource, current_database()) || coalesce(' --worker ' || bar.worker, '')
        ELSE 'run fencepost resume with the names that fencepost resource list shows, quoted for your shell' END;
    IF bar.worker IS NULL THEN
        what := format('%s paused the resource at %s%s', fencepost.quoted(given.asked_by), to_char(given.asked_at AT TIME ZONE 'UTC', stamp), why);
        hint := format('Nobody is granted an epoch of a paused resource. To end the pause, %s', lift);
    ELSE
        what := format('by order of %s, it may not campaign until %s%s', fencepost.quoted(given.asked_by),
            to_char(bar.until AT TIME ZONE 'UTC', stamp), why);
        hint := format('To let it campaign earlier, %s', lift);
    END IF;
    left_ms := ceil(extract(epoch FROM bar.until - clock_timestamp()) * 1000);
END $$;

-- unchosen says why a worker of the resource cannot be chosen, NULL if it can.
CREATE FUNCTION fencepost.unchosen(rec fencepost.fence, worker text, OUT what text, OUT hint text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar   record;
    names text;
    total bigint;
BEGIN
    IF rec.source = 'token' THEN
        what := 'the application elects its leader, and Fencepost knows it by its token';
        hint := 'Let the application''s own elector choose the worker: whoever brings the highest token leads.';
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM fencepost.bars b WHERE b.fence = rec.id AND (b.worker IS NULL OR b.worker = worker) AND (b.until IS NULL OR b.until > clock_timestamp())) THEN
        SELECT b.* INTO bar FROM fencepost.barred(rec.id, fencepost.quoted(worker)) b;
        what := bar.what;
        hint := bar.hint;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM fencepost.campaigning(rec.resource) c WHERE c.worker = worker AND c.incarnation IS DISTINCT FROM rec.incarnation AND NOT c.silent) THEN
        RETURN;
    END IF;
    SELECT string_agg(fencepost.quoted(n.worker), ', ' ORDER BY n.worker) FILTER (WHERE n.rank <= 20), count(*) INTO names, total
        FROM (SELECT c.worker, row_number() OVER (ORDER BY c.worker) AS rank FROM fencepost.campaigning(rec.resource) c
            WHERE c.incarnation IS DISTINCT FROM rec.incarnation AND NOT c.silent GROUP BY c.worker) n;
    IF EXISTS (SELECT FROM fencepost.campaigning(rec.resource) c WHERE c.worker = worker) THEN
        what := format('worker %s campaigns, but it is silent, and a silent worker takes no lease', fencepost.quoted(worker));
    ELSE
        what := format('worker %s does not campaign for it through any proxy', fencepost.quoted(worker));
    END IF;
    hint := CASE WHEN total = 0 THEN 'No other worker campaigns for it that could lead: connect one, and wait a second.'
        ELSE format('These could lead: %s%s. A worker is known a second after it has connected.', names,
            CASE WHEN total > 20 THEN format(' and %s more', total - 20) ELSE '' END) END;
END $$;

-- handover offers the lead of a resource to a worker. The leader is stopped after delay, by when every
-- proxy knows the offer, and the offer lasts for length after that. handover returns the id of the
-- order, also of one that has made the same offer before and is still in force; 0 if the worker leads
-- already. ZF010: it cannot be done.
CREATE FUNCTION fencepost.handover(fence integer, worker text, delay interval, length interval, asked_by text, reason text)
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
                to_char(offer.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')) AS what, 'Wait for the outcome, and run the command again.' AS hint
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

-- note_offer records how long ago the leader was stopped, or the chosen worker could write, for who
-- wants to know how long nobody could. NULL says nothing about it.
CREATE FUNCTION fencepost.note_offer(order_id bigint, stopped interval, taken interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.offers o SET stopped = coalesce(o.stopped, clock_timestamp() - stopped), taken = coalesce(o.taken, clock_timestamp() - taken)
        WHERE o.order_id = order_id;
END $$;

-- status changes in two ways: its orders contain the offer that is in force, and it has who waits.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT s.resource, s.epoch, s.worker, s.source, s.source_generation, s.source_index, s.granted_at, s.sequence, s.state,
        CASE s.state WHEN 'led' THEN s.granted_at WHEN 'contested' THEN s.acquired_at WHEN 'vacant' THEN s.expires_at END AS state_since,
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
        ) AS waiting
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

SELECT fencepost.seal();
