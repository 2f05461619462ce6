-- Rights: who else may use the schema. Its owner, the control role, is the only one who may use what is in it, with
-- three exceptions: members of pg_monitor may read fencepost.status, roles that fencepost.admit has named may call
-- fencepost.claim, and the triggers of guarded tables run with the rights of the owner. fencepost.seal() grants exactly
-- that.

-- admit lets a role call fencepost.claim, and read the status.
CREATE OR REPLACE FUNCTION fencepost.admit(role name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_object', MESSAGE = format('the role %s does not exist', fencepost.quoted(role)),
            HINT = 'Create it first, or name another.';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA fencepost TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.claim(text, bigint) TO %I', role);
    EXECUTE format('GRANT SELECT ON fencepost.status TO %I', role);
END $$;

-- unreplicated is the trigger that keeps logical replication from writing the tables of the schema. A row of another
-- database's fence could make an epoch valid again that has ended here, and where both databases have a row under one key,
-- replication would stop. The trigger fires only with session_replication_role = replica, and lets a client pass, which may
-- restore a backup in that way. Nothing can be skipped of a TRUNCATE, so that stops replication.
CREATE OR REPLACE FUNCTION fencepost.unreplicated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT a.backend_type FROM pg_stat_get_activity(pg_backend_pid()) a) IS DISTINCT FROM 'client backend' THEN
        IF TG_OP = 'TRUNCATE' THEN
            RAISE EXCEPTION 'logical replication may not truncate table % of the schema fencepost', TG_RELID::regclass USING HINT = 'Leave the schema out of the publication.';
        END IF;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW; -- nothing, of a TRUNCATE
END $$;

-- replicable returns the tables that logical replication could write, because they lack that trigger, or it is disabled.
-- An unlogged table is not replicated.
CREATE OR REPLACE FUNCTION fencepost.replicable() RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
        AND (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname IN ('unreplicated', 'unreplicated_truncate') AND t.tgenabled IN ('R', 'A')) < 2 ORDER BY 1
$$;

-- seal makes the triggers that keep out logical replication, and sets the privileges of PUBLIC, so that it also corrects what an upgrade or a default privilege added, and what a
-- restore lost. Everybody may use the functions of guards, but not name them: whoever makes or attaches a partition makes
-- its triggers.
CREATE OR REPLACE FUNCTION fencepost.seal() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    gate regprocedure;
    open regclass;
BEGIN
    FOR open IN SELECT fencepost.replicable() LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER unreplicated BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION fencepost.unreplicated()', open);
        EXECUTE format('CREATE OR REPLACE TRIGGER unreplicated_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencepost.unreplicated()', open);
        EXECUTE format('ALTER TABLE %s ENABLE REPLICA TRIGGER unreplicated, ENABLE REPLICA TRIGGER unreplicated_truncate', open);
    END LOOP;
    REVOKE ALL ON SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA fencepost FROM PUBLIC;
    GRANT USAGE ON SCHEMA fencepost TO pg_monitor;
    GRANT SELECT ON fencepost.status TO pg_monitor;
    FOR gate IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proname ~ '^guard_[0-9]+(_|$)' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', gate);
    END LOOP;
END $$;

-- warnings returns what an operator should know about the power of other roles over the fence in this database.
CREATE OR REPLACE FUNCTION fencepost.warnings() RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    mighty   text;
BEGIN
    SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname) INTO mighty FROM pg_roles r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND r.oid <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'fencepost')
          AND pg_has_role(r.oid, 'pg_write_all_data', 'MEMBER');
    IF mighty IS NOT NULL THEN
        RETURN NEXT format('pg_write_all_data lets %s change the fence itself (UPDATE): take it from roles that workers use', mighty);
    END IF;
    SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname) INTO mighty FROM pg_roles r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND r.oid <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'fencepost')
          AND EXISTS (SELECT FROM pg_roles g WHERE g.rolname = 'pg_maintain' AND pg_has_role(r.oid, g.oid, 'MEMBER')); -- from 17 on
    IF mighty IS NOT NULL THEN
        RETURN NEXT format('pg_maintain lets %s hold off takeovers (VACUUM FULL, LOCK TABLE): take it from roles that workers use', mighty);
    END IF;
    -- Since 16, a membership alone, as whoever creates a role has it, is not enough to act as the role.
    SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname) INTO mighty FROM pg_roles r, pg_namespace n
        WHERE n.nspname = 'fencepost' AND r.rolcanlogin AND NOT r.rolsuper AND r.oid <> n.nspowner
          AND pg_has_role(r.oid, n.nspowner, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END);
    IF mighty IS NOT NULL THEN
        RETURN NEXT format('membership in the control role lets %s change the fence itself, so Fencepost refuses workers of such roles: REVOKE %I FROM them', mighty,
            (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'));
    END IF;
END $$;
