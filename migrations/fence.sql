-- The fence: one row for each resource, and the ledger of all grants.
--
-- Locks. A registration locks the row FOR KEY SHARE until it commits, and so does a transaction that writes a guarded
-- table under fencepost.claim. A grant first locks the row FOR NO KEY UPDATE, against other grants and orders, and
-- decides. Before it records an epoch, it locks the row FOR UPDATE. So it sees every registration under the old epoch, and
-- every registration that comes after it sees the new one.
--
-- All of these are locks of rows, which need a right on the table. A lock of a relation would not do: whoever may connect
-- can lock any relation, because nextval locks what it is given, until the end of the transaction, before it looks at the
-- right, or whether that is a sequence.
CREATE TABLE fencepost.fence (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource          text COLLATE "C" NOT NULL UNIQUE CHECK (pg_catalog.length(resource) BETWEEN 1 AND 255),
    epoch             bigint NOT NULL DEFAULT 0 CHECK (epoch >= 0), -- 0: nobody was granted one yet
    worker            text COLLATE "C", -- NULL: nobody holds the current epoch
    incarnation       text COLLATE "C",
    source            text COLLATE "C",
    source_generation bigint NOT NULL DEFAULT 0,
    source_index      bigint NOT NULL DEFAULT 0,
    granted_at        timestamptz
);
COMMENT ON TABLE fencepost.fence IS 'the highest grant of each resource';

-- The number of the first fence is random. A session that was opened under a schema which was dropped since
-- knows its fence by number. If the new schema numbered its fences from 1 too, that session could find its
-- number and its epoch there, and be registered. The upper half of the positive integers is left for the
-- fences that follow.
DO $$
BEGIN
    EXECUTE pg_catalog.format('ALTER TABLE fencepost.fence ALTER COLUMN id RESTART WITH %s',
        1 + pg_catalog.floor(pg_catalog.random() OPERATOR(pg_catalog.*) 1073741823::pg_catalog.float8));
END $$;

-- xid and snapshot are evidence for a later look at the rows of stamped tables. The snapshot is taken when no
-- transaction of an older epoch can commit any more. So a row that is stamped with an older epoch, and whose
-- transaction the snapshot does not see, was written after the grant. In a restored dump, a row of the ledger
-- was not written by the transaction that it names; that tells the copy from the original.
CREATE TABLE fencepost.grants (
    id                integer NOT NULL REFERENCES fencepost.fence (id),
    resource          text COLLATE "C" NOT NULL,
    epoch             bigint NOT NULL,
    worker            text COLLATE "C",
    incarnation       text COLLATE "C",
    source            text COLLATE "C" NOT NULL,
    source_generation bigint NOT NULL,
    source_index      bigint NOT NULL,
    granted_at        timestamptz NOT NULL,
    xid               xid8 NOT NULL,
    snapshot          pg_snapshot NOT NULL,
    PRIMARY KEY (id, epoch)
);
CREATE INDEX grants_incarnation ON fencepost.grants (id, incarnation);
CREATE INDEX grants_worker ON fencepost.grants (id, worker);
COMMENT ON TABLE fencepost.grants IS 'the ledger: one row per grant, never changed';

CREATE TABLE fencepost.floor (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL
);
INSERT INTO fencepost.floor (epoch) VALUES (0);
COMMENT ON TABLE fencepost.floor IS 'no new resource begins below this epoch: the highest one of all removed resources, and of those that a restore may have lost';

CREATE TABLE fencepost.identity (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    id       uuid NOT NULL,
    database oid -- where the identity was made
);
INSERT INTO fencepost.identity (id, database)
    SELECT pg_catalog.gen_random_uuid(), d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();
COMMENT ON TABLE fencepost.identity IS 'by what Fencepost tells this database from an earlier one of its name';

-- here returns the number of this database. It reads no catalog: any role can lock one away from all others, pg_database even
-- from another database. It is not in SQL, because Postgres would parse and plan it at each registration.
CREATE OR REPLACE FUNCTION fencepost.here() RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT a.datid FROM pg_stat_get_activity(pg_backend_pid()) a);
END $$;

-- identify gives a database an identity of its own if it was created from a template and nothing was granted
-- in it yet. Otherwise it could be taken for an older state of a database that had its name before. A
-- restored dump that contains grants keeps the identity of the original.
CREATE OR REPLACE FUNCTION fencepost.identify() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE fencepost.identity i SET id = gen_random_uuid(), database = fencepost.here()
        WHERE i.database IS DISTINCT FROM fencepost.here()
            AND NOT EXISTS (SELECT FROM fencepost.fence) AND NOT EXISTS (SELECT FROM fencepost.grants)
            AND NOT EXISTS (SELECT FROM fencepost.floor f WHERE f.epoch > 0);
END $$;

-- secure makes the commit of this transaction wait for the disk, and for the configured standbys, whatever
-- the session's default is. The setting must be changed in the function's body: one that a SET clause makes
-- would end before the commit.
CREATE OR REPLACE FUNCTION fencepost.secure() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'a grant runs in READ COMMITTED';
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local,remote_write}'::pg_catalog.text[]) THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- lost raises the error of a fence that is not there.
CREATE OR REPLACE FUNCTION fencepost.lost(fence integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('fence %s cannot be used: its row is missing', fence),
        HINT = 'If an operator removed the resource, connect again. Otherwise run fencepost migrate --dsn DSN, and connect again.';
END $$;

-- lock_fence locks a fence's row against other grants and orders, and returns it. Registrations go on.
CREATE OR REPLACE FUNCTION fencepost.lock_fence(fence integer) RETURNS fencepost.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec fencepost.fence%ROWTYPE;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR NO KEY UPDATE;
    IF rec.id IS NULL THEN
        PERFORM fencepost.lost(fence);
    END IF;
    RETURN rec;
END $$;

-- share keeps a fence's row from being changed by a grant until the end of this transaction, and returns it, NULL if it
-- is not there. It waits for a grant that is recording an epoch. In REPEATABLE READ it fails (40001) if a grant was
-- recorded since the transaction began. In READ COMMITTED it returns the newest row.
CREATE OR REPLACE FUNCTION fencepost.share(fence integer) RETURNS fencepost.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec fencepost.fence%ROWTYPE;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR KEY SHARE;
    RETURN rec;
END $$;

-- has_row reports whether this transaction has locked a fence's row. An xmax is the number of a transaction or
-- subtransaction, or of a set of them. Nothing says which, and only a number of an existing set may be looked up.
CREATE OR REPLACE FUNCTION fencepost.has_row(fence integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM fencepost.fence f CROSS JOIN LATERAL (
            SELECT f.xmax AS xid
            UNION ALL SELECT m.xid FROM pg_get_multixact_members(CASE
                WHEN mxid_age(f.xmax) BETWEEN 1 AND (SELECT max(mxid_age(d.datminmxid)) FROM pg_database d) THEN f.xmax END) m) l
        WHERE f.id = fence AND (l.xid = pg_current_xact_id()::xid OR l.xid IN (
            SELECT k.transactionid FROM pg_lock_status() k WHERE k.pid = pg_backend_pid() AND k.locktype = 'transactionid' AND k.granted)))
$$;

-- pass is share for a transaction that may last. Postgres grants a lock of a row past those that wait for a stronger one,
-- so transactions that overlap could keep a grant waiting for ever. Therefore pass first locks the row in a mode that a
-- grant in progress excludes, and gives that lock back by a subtransaction. A transaction that has the row already does
-- not do that: the grant waits for it. A setting says that this transaction has passed; any client could set it, so the
-- row is looked at, too. It returns NULL for the fence NULL.
CREATE OR REPLACE FUNCTION fencepost.pass(fence integer) RETURNS fencepost.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    passed text := 'fencepost.passed_' || fence;
BEGIN
    IF fence IS NULL THEN
        RETURN NULL;
    END IF;
    IF current_setting(passed, true) IS DISTINCT FROM pg_current_xact_id()::text OR NOT fencepost.has_row(fence) THEN
        BEGIN
            PERFORM FROM fencepost.fence f WHERE f.id = fence FOR SHARE;
            RAISE EXCEPTION USING ERRCODE = 'ZF000';
        EXCEPTION WHEN SQLSTATE 'ZF000' THEN
            PERFORM set_config(passed, pg_current_xact_id()::text, true);
        END;
    END IF;
    RETURN fencepost.share(fence);
END $$;

-- known_epoch returns the highest epoch that anything in the database records for a fence.
CREATE OR REPLACE FUNCTION fencepost.known_epoch(rec fencepost.fence) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(rec.epoch, (SELECT max(g.epoch) FROM fencepost.grants g WHERE g.id = rec.id));
END $$;

-- state reads a fence, and whether that is settled: no grant is recording an epoch, so that nothing newer is about to
-- appear. The lock that it takes need not be flushed. At a standby, which grants nothing, it takes none.
CREATE OR REPLACE FUNCTION fencepost.state(fence integer, OUT rec fencepost.fence, OUT settled boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    settled := pg_is_in_recovery();
    IF NOT settled THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR KEY SHARE SKIP LOCKED;
        settled := FOUND;
    END IF;
    IF rec.id IS NULL THEN
        SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
        IF NOT FOUND THEN
            PERFORM fencepost.lost(fence);
        END IF;
    END IF;
END $$;

-- register returns the id of a resource's fence, and creates the fence if the resource is new. Concurrent calls are
-- safe.
--
-- A proxy that replaces one which has died begins with this, so it also sweeps the registry; the registry of
-- a standby cannot be read. A new resource begins at the floor, whose lock makes this wait for a removal of
-- the same resource. The commit does not wait for standbys. The grant that follows does, and can say so; a
-- standby that has confirmed the grant has the resource, too. A resource that a failover loses had no epoch
-- that anybody was told of.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'local', true);
    IF NOT pg_is_in_recovery() THEN
        PERFORM fencepost.sweep();
    END IF;
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        PERFORM fencepost.identify();
        SELECT l.epoch INTO STRICT last FROM fencepost.floor l FOR SHARE;
        INSERT INTO fencepost.fence (resource, epoch) VALUES (resource, last) ON CONFLICT DO NOTHING RETURNING id INTO fence;
    END IF;
    IF fence IS NULL THEN -- somebody else made it meanwhile
        SELECT f.id INTO STRICT fence FROM fencepost.fence f WHERE f.resource = resource;
    END IF;
    RETURN fence;
END $$;
