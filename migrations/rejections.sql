-- Rejections: what the proxies have refused or discarded in this database, counted.
--
-- The audit log of each proxy is the complete record; this is its summary in one place, which outlives the logs
-- and needs none of them. The proxies add to the rows of the same minute, and delete old ones (audit.keep), so
-- the first column of the key is what both --since and the deletion ask for. Whoever uses the id of another
-- worker is not that worker, so the login role is part of the key.
CREATE TABLE fencepost.rejections (
    minute         timestamptz NOT NULL, -- when the minute began, by the clock of the proxy
    database       text NOT NULL,        -- its name then: a restored copy has the rows of the original too
    resource       text NOT NULL,        -- '' if the connection named none
    worker         text NOT NULL,        -- likewise
    kind           text NOT NULL,        -- discarded, or why it was refused: the words of the metrics
    write          boolean NOT NULL,     -- the statement was not provably a read
    sqlstate       text NOT NULL,
    fingerprint    text NOT NULL,        -- '' if the text is unreadable, or one too many of that worker
    count          bigint NOT NULL CHECK (count > 0),
    first_at       timestamptz NOT NULL,
    last_at        timestamptz NOT NULL,
    -- The rest is that of the latest, except for the login role.
    epoch          bigint NOT NULL,      -- of the worker, 0 for none
    current_epoch  bigint NOT NULL,
    current_worker text NOT NULL,        -- '' if nobody holds that epoch, or it is not known who
    login_role     text NOT NULL,
    client         text NOT NULL,
    proxy          text NOT NULL,
    statement      text NOT NULL,        -- without literals, as in the audit log
    PRIMARY KEY (minute, database, resource, worker, login_role, kind, write, sqlstate, fingerprint)
);
COMMENT ON TABLE fencepost.rejections IS 'statements that Fencepost has refused or discarded, counted by minute; the audit log of the proxies has each of them';
