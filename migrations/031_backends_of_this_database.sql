-- A dump of a database contains the registrations of its backends. Restored on the same server while these
-- still run, it made a grant in the copy terminate the backends of the original.

-- drain and sweep change in one way: a backend of another database is none that is registered here.
CREATE OR REPLACE FUNCTION fencepost.drain(fence integer, since timestamptz, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    note  record;
    busy  integer;
    fault text;
    ended integer[] := '{}';
    here  oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
BEGIN
    LOOP
        busy := 0;
        PERFORM pg_stat_clear_snapshot(); -- pg_stat_activity is cached per transaction
        FOR note IN
            SELECT r.pid, r.note, r.backend_start, a.pid IS NOT NULL AND a.backend_start IS NULL AS hidden,
                   a.pid IS NOT NULL AND a.backend_start = r.backend_start AS alive, a.usename, a.application_name, a.state
            FROM fencepost.running r LEFT JOIN pg_stat_activity a ON a.pid = r.pid AND a.datid = here
            WHERE r.fence = fence
        LOOP
            fault := NULL;
            IF note.hidden THEN
                fault := 'whether it is still there cannot be seen: the control role lacks pg_read_all_stats';
            ELSIF NOT note.alive THEN
                DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = note.pid AND r.note = note.note;
                CONTINUE;
            ELSIF clock_timestamp() > since + grace THEN
                BEGIN
                    -- The lookup and the signal are one statement, because a process id may have
                    -- been reused since the list was made.
                    PERFORM pg_stat_clear_snapshot();
                    PERFORM pg_terminate_backend(a.pid) FROM pg_stat_get_activity(note.pid) a WHERE a.datid = here AND a.backend_start = note.backend_start;
                    IF FOUND AND note.pid <> ALL (ended) THEN
                        ended := ended || note.pid;
                        RAISE INFO USING MESSAGE = 'fencepost has terminated a registered backend', DETAIL = format('{"pid":%s,"user":%s,"application":%s,"state":%s}',
                            note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name), fencepost.quoted(note.state));
                    END IF;
                EXCEPTION WHEN insufficient_privilege THEN
                    fault := 'the control role may not end it';
                END;
            END IF;
            IF fault IS NULL AND clock_timestamp() > since + grace + patience THEN
                fault := format('it is still there %s after it was ended', patience);
            END IF;
            IF fault IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('backend %s of role %s (application %s) is in the way of a grant: %s',
                    note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name), fault);
            END IF;
            busy := busy + 1;
        END LOOP;
        EXIT WHEN busy = 0;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fencepost.sweep() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot(); -- the backends are read after the rows, never before
    DELETE FROM fencepost.running r WHERE (r.fence, r.pid, r.note) IN (
        SELECT old.fence, old.pid, old.note FROM fencepost.running old
        WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(old.pid) a
            WHERE a.pid = old.pid AND a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                AND coalesce(a.backend_start = old.backend_start, true))
        FOR UPDATE SKIP LOCKED);
END $$;

SELECT fencepost.seal();
