-- Hand-over: an operator chooses who leads next. The order makes an offer of the lease to one worker
-- (fencepost.offers). Until it has run out, or a new epoch is recorded, nobody else is granted one. The leader's
-- proxy stops its worker and releases the lease, and the chosen worker gets it as it gets any lease that is
-- free: a new award, and a grant. Nothing here makes an epoch.

-- Who campaigns, as each proxy says. A proxy writes that in batches, at most once a second, and without waiting
-- for the disk. Only the refusal of a hand-over and what is shown rest on it.
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
    -- What its proxy last said: 'leading' (it may write), 'waiting' (for the lead), 'idle' (it would ask for the
    -- lead with its next write), 'frozen' (it does not send the heartbeats that it has promised) or 'barred' (by an order).
    state       text COLLATE "C" NOT NULL CHECK (state IN ('leading', 'waiting', 'idle', 'frozen', 'barred')),
    PRIMARY KEY (proxy, resource, incarnation) -- workers with one token of two resources have one incarnation
);
CREATE INDEX candidates_resource ON fencepost.candidates (resource, worker);
COMMENT ON TABLE fencepost.candidates IS 'the candidacies of each proxy that campaign, with the one that leads';

-- note_candidates records who campaigns through a proxy, and that the proxy is there. whole replaces everything
-- that was known of it; otherwise known is the revision on which the changes rest. It returns the new revision,
-- NULL if known was not the last one. The arrays have an element for each candidacy.
--
-- Every proxy with a candidacy calls it every few seconds, so it also keeps the registry small.
--
-- It deletes the candidacies of an old proxy by itself, and does not leave that to the foreign key, which does
-- not exist yet in a database that is being restored, and could not be created after that.
CREATE OR REPLACE FUNCTION fencepost.note_candidates(proxy text, name text, known bigint, whole boolean,
    incarnations text[], resources text[], workers text[], silences boolean[], states text[], gone_resources text[], gone text[])
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    revision bigint;
    one      CONSTANT bigint := CASE WHEN cardinality(incarnations) + cardinality(gone) > 0 THEN 1 ELSE 0 END;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
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
        DELETE FROM fencepost.candidates c USING unnest(gone_resources, gone) g (resource, incarnation)
            WHERE c.proxy = proxy AND c.resource = g.resource AND c.incarnation = g.incarnation;
    END IF;
    INSERT INTO fencepost.candidates AS c (proxy, incarnation, resource, worker, silent, state)
        SELECT proxy, n.incarnation, n.resource, n.worker, n.silent, n.state
        FROM unnest(incarnations, resources, workers, silences, states) n (incarnation, resource, worker, silent, state)
        ON CONFLICT ON CONSTRAINT candidates_pkey DO UPDATE SET worker = excluded.worker, silent = excluded.silent, state = excluded.state;
    -- It has locked its own row by now, so that two proxies that come back after a minute do not wait for each other.
    WITH silent_ones AS (DELETE FROM fencepost.proxies p WHERE p.id IN (SELECT old.id FROM fencepost.proxies old
            WHERE old.seen < clock_timestamp() - interval '1 minute' AND old.id <> proxy FOR UPDATE SKIP LOCKED) RETURNING p.id)
        DELETE FROM fencepost.candidates c USING silent_ones s WHERE c.proxy = s.id;
    IF EXISTS (SELECT FROM fencepost.running r OFFSET 1000) THEN -- workers that connect often would fill the registry
        PERFORM fencepost.sweep();
    END IF;
    RETURN revision;
END $$;

-- campaigning returns the candidacies for a resource of the proxies that are there. It leaves out those that
-- were superseded and can never lead again: their proxy may say for another second that they campaign, until it
-- has learnt of that.
CREATE OR REPLACE FUNCTION fencepost.campaigning(resource text) RETURNS SETOF fencepost.candidates
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.* FROM fencepost.candidates c JOIN fencepost.proxies p ON p.id = c.proxy JOIN fencepost.fence f ON f.resource = c.resource
        WHERE c.resource = campaigning.resource AND p.seen > clock_timestamp() - interval '15 seconds'
        AND (c.incarnation IS NOT DISTINCT FROM f.incarnation
            OR NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.id = f.id AND g.incarnation = c.incarnation))
$$;

-- unchosen says why a worker of the resource cannot be chosen, NULL if it can.
CREATE OR REPLACE FUNCTION fencepost.unchosen(rec fencepost.fence, worker text, OUT what text, OUT hint text)
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

-- handover offers the lead of a resource to a worker. The leader is stopped after delay, by when every proxy
-- knows the offer, and the offer lasts for length after that. handover returns the id of the order, also of one
-- that has made the same offer before and is still in force; 0 if the worker leads already. ZF010: it cannot be
-- done.
CREATE OR REPLACE FUNCTION fencepost.handover(fence integer, worker text, delay interval, length interval, asked_by text, reason text)
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
                to_char(offer.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')) AS what,
                'Wait for the outcome, or end that hand-over with fencepost pause and fencepost resume, and run the command again.' AS hint
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

-- note_offer records how long ago the leader was stopped, or the chosen worker could write, for who wants to
-- know how long nobody could. NULL says nothing about it.
CREATE OR REPLACE FUNCTION fencepost.note_offer(order_id bigint, stopped interval, taken interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.offers o SET stopped = coalesce(o.stopped, clock_timestamp() - stopped), taken = coalesce(o.taken, clock_timestamp() - taken)
        WHERE o.order_id = order_id;
END $$;
