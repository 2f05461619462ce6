-- The identity of the database. A database that is dropped and made anew under its name has another
-- one, so that what a proxy knew of the old database does not count in it. A dump or a copy carries the
-- identity along, so a database that was restored from an older state is still noticed.
CREATE TABLE fencepost.identity (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id  uuid NOT NULL
);
INSERT INTO fencepost.identity (id) VALUES (pg_catalog.gen_random_uuid());
COMMENT ON TABLE fencepost.identity IS 'by what Fencepost tells this database from an earlier one of its name';

SELECT fencepost.seal();
