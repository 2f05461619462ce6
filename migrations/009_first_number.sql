-- The number of a new schema's first fence is random. A session that was opened under a schema which
-- was dropped since checks a fence by its number. If the new schema numbered its fences from the
-- beginning too, that session could find its number and its epoch there, and pass the check.
-- Numbers are positive integers; the upper half is left for the fences that follow.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM fencepost.fence) AND NOT EXISTS (SELECT FROM fencepost.grants) THEN
        EXECUTE pg_catalog.format('ALTER TABLE fencepost.fence ALTER COLUMN id RESTART WITH %s',
            1 + pg_catalog.floor(pg_catalog.random() OPERATOR(pg_catalog.*) 1073741823::pg_catalog.float8));
    END IF;
END $$;
