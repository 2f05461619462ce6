-- A database that was created from a template has the template's identity. As long as nothing was
-- granted in it, it gets one of its own with its first resource, so that it is not taken for an older
-- state of a database that had its name before. A dump that has grants keeps the identity.
ALTER TABLE fencepost.identity ADD COLUMN database oid; -- where the identity was made
UPDATE fencepost.identity SET database =
    (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database());

CREATE FUNCTION fencepost.identify() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE fencepost.identity i SET id = gen_random_uuid(), database = d.oid
        FROM pg_database d WHERE d.datname = current_database() AND i.database IS DISTINCT FROM d.oid
            AND NOT EXISTS (SELECT FROM fencepost.fence) AND NOT EXISTS (SELECT FROM fencepost.grants)
            AND NOT EXISTS (SELECT FROM fencepost.floor f WHERE f.epoch > 0);
END $$;

-- register changes in one way: the first resource identifies the database.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        PERFORM fencepost.identify();
        SELECT l.epoch INTO STRICT last FROM fencepost.floor l FOR SHARE;
        INSERT INTO fencepost.fence (resource, epoch) VALUES (resource, last) ON CONFLICT DO NOTHING RETURNING id INTO fence;
    END IF;
    IF fence IS NULL THEN -- somebody else made it meanwhile
        SELECT f.id INTO STRICT fence FROM fencepost.fence f WHERE f.resource = resource;
    END IF;
    IF fencepost.sequence_of(fence) IS NULL THEN
        SELECT f.epoch INTO STRICT last FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
        IF fencepost.sequence_of(fence) IS NULL THEN
            EXECUTE format('CREATE SEQUENCE fencepost.%I AS bigint', 'epoch_' || fence);
            PERFORM fencepost.admit(fencepost.sequence_of(fence));
            IF last > 0 THEN
                PERFORM setval(fencepost.sequence_of(fence), last);
            END IF;
        END IF;
    END IF;
    RETURN fence;
END $$;

SELECT fencepost.seal();
